"""Print texts as they complete, and leave when there are enough.

python examples/stream.py
"""

import bestk

lm = bestk.load("smollm2")
messages = [{"role": "user", "content": "Name a fruit. Answer with one word."}]
texts = bestk.stream(lm, messages, beam_size=5, max_new_tokens=8)
for number, hypothesis in enumerate(texts, start=1):
    print(f"step {hypothesis.step}: {hypothesis.text}")
    if number == 5:
        texts.close()  # ends the search and frees its memory
