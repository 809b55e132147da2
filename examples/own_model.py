"""Search a batch of prompts with a transformers model that is already loaded.

python examples/own_model.py
"""

from transformers import GPT2Config, GPT2LMHeadModel

import bestk

model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=50, eos_token_id=0))
lm = bestk.from_transformers(model)  # without a tokenizer prompts and texts are token ids
results = bestk.search(lm, [[5, 6, 7], [8, 9]], beam_size=4, max_new_tokens=6, min_prob=0.01)
for result in results:
    print(result.prompt, len(result.hypotheses), "texts, such as", result.texts[:2])
