"""Search one prompt and print its ranked texts.

python examples/search.py
"""

import bestk

lm = bestk.load("smollm2")
result = bestk.search(lm, "The best thing about dogs is", stop=".", beam_size=5, max_new_tokens=15)
for hypothesis in result.hypotheses:
    print(f"{hypothesis.score:.3f} {hypothesis.text}")
print(f"{result.mass.completed:.1%} of the model's probability, {result.cost.expanded} expansions")
