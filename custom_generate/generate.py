"""Best-k search as a custom generation method of the Hugging Face hub.

The hub hands over the arguments of `generate` as they came; they go back to `generate` with bestk's
decoding loop in place of its own.
"""

import copy

import bestk


def generate(model, tokenizer=None, stop_strings=None, generation_config=None, **arguments):
    """Call `model.generate` with best-k search.

    `k`, `beam_size`, `num_texts` and the other options of `bestk.generate` are taken too. Unlike a
    callable, a folder receives the tokenizer: with it texts are merged, and stop strings work.
    """
    if generation_config is not None:
        generation_config = copy.deepcopy(generation_config)
        stop_strings = stop_strings or generation_config.stop_strings
        generation_config.stop_strings = None
    if stop_strings:
        arguments["stop"] = [stop_strings] if isinstance(stop_strings, str) else stop_strings
    if tokenizer is not None:
        arguments.setdefault("text_tokenizer", tokenizer)
    return model.generate(
        generation_config=generation_config, custom_generate=bestk.generate, **arguments
    )
