"""bestk as a model of EleutherAI's lm-eval, which brings tasks and metrics of its own.

    python -m bestk_eval.harness run --model bestk --model_args pretrained=smollm2 --tasks gsm8k

Likelihoods are lm-eval's; texts are bestk's. A task that asks k times for a prompt, as for pass@k,
gets the k texts of one search. Knows nothing of bestk's own tasks.
"""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from lm_eval.__main__ import cli_evaluate
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import normalize_gen_kwargs

import bestk
from bestk.config import SearchConfig
from bestk.lm.loading import source_of

_SETTINGS = frozenset(field.name for field in dataclasses.fields(SearchConfig))
_OF_CHANCE = ("temperature", "top_k", "top_p", "min_p", "typical_p")


@register_model("bestk")
class HarnessModel(HFLM):
    """A model of transformers, by any name that bestk has for it, that writes by best-k search.

    `--model_args` are lm-eval's for `hf`, and any setting of a search.
    """

    def __init__(self, pretrained: str = "smollm2", **options: Any) -> None:
        self.settings = {name: options.pop(name) for name in _SETTINGS & options.keys()}
        super().__init__(source_of(pretrained), **options)
        self.lm = bestk.from_transformers(self.model, self.tokenizer, pretrained)

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return a text for each request; equal ones get different texts of one search."""
        places: dict[tuple[str, str], list[int]] = defaultdict(list)
        for place, request in enumerate(requests):
            context, asked = request.args
            places[context, json.dumps(asked, sort_keys=True)].append(place)
        alike: dict[tuple[str, int], list[str]] = defaultdict(list)
        for (context, asked), found in places.items():
            alike[asked, len(found)].append(context)
        texts = [""] * len(requests)
        for (asked, count), contexts in alike.items():
            results = self._search(contexts, json.loads(asked), count, not disable_tqdm)
            for context, result in zip(contexts, results, strict=True):
                for rank, place in enumerate(places[context, asked]):
                    texts[place] = result[rank].text if rank < len(result) else ""
                    self.cache_hook.add_partial(
                        "generate_until", requests[place].args, texts[place]
                    )
        return texts

    def _search(
        self, contexts: list[str], asked: dict[str, Any], count: int, progress: bool
    ) -> list[bestk.SearchResult]:
        given = normalize_gen_kwargs(asked, self.max_gen_toks)
        longest = given["max_gen_toks"]
        unset = () if given.get("do_sample") else _OF_CHANCE
        options = {name: given[name] for name in _SETTINGS & given.keys() if name not in unset}
        settings = SearchConfig.of(
            {
                "max_new_tokens": longest,
                "stop": tuple(one for one in given["until"] if one),
                "num_texts": count,
                **options,
                **self.settings,
            }
        )
        room = self.max_length - settings.max_new_tokens
        prompts = [self.tok_encode(context)[-room:] for context in contexts]
        found: list[bestk.SearchResult]
        found = bestk.search(
            self.lm, prompts, settings, raw=True, progress=None if progress else False
        )
        return found


if __name__ == "__main__":
    cli_evaluate()
