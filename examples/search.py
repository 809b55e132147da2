"""Search one prompt and print its ranked texts.

python examples/search.py
"""

import bestk

lm = bestk.load("smollm2")
result = bestk.search(lm, "Name a good thing about dogs.", num_texts=5, max_new_tokens=30)
for hypothesis in result:
    print(f"{hypothesis.score:.3f} {hypothesis.text}")
print(f"{result.mass.completed:.1%} of the model's probability, {result.cost.expanded} expansions")
