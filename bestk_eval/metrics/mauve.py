"""MAUVE by mauve-text: how close the texts of a method are, as a crowd, to the references.

Features are the last layer's hidden state at the last token of each text, from a causal model of
the user's choice (the original uses GPT-2 large); numbers of different models do not compare. It
has no interval: a bootstrap would cluster anew each time.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from functools import cached_property
from importlib.metadata import version
from typing import Any

import numpy as np

from bestk import LanguageModel, load
from bestk.errors import MissingDataError, ModelError
from bestk_eval.examples import Pool
from bestk_eval.extras import require
from bestk_eval.metrics.base import Column, CorpusMetric
from bestk_eval.statistics import Numbers, Resample

MIN_TEXTS = 20  # two clusters of ten: below that the number says nothing

_BATCH = 64
_SEED = 25


class Mauve(CorpusMetric):
    """MAUVE of all texts of a method against all references, in percent."""

    family = "mauve"
    is_slow = True
    columns = (Column(key="MV", title="MAUVE against the references", group="Natural"),)

    def __init__(self, model: str | LanguageModel | None) -> None:
        if model is None:  # there is no default that is right for all
            raise MissingDataError("MAUVE has no model for its features: name one, --mauve-model")
        self._mauve = require("mauve", "mauve-text")
        self._model = model
        self._known: dict[str, Numbers] = {}
        name = model if isinstance(model, str) else model.name
        self.signature = (
            f"mauve|features:{name},last-token|c:5|buckets:n/10|seed:{_SEED}"
            f"|mauve-text:{version('mauve-text')}"
        )

    @cached_property
    def _lm(self) -> LanguageModel:
        # When it is first needed: where all scores are kept, it never is.
        return _loaded(self._model)

    def score(self, pools: Sequence[Pool], view: str, top: int) -> Sequence[Resample | float]:
        people = [text for pool in pools for text in pool.example.references if text.strip()]
        machine = [text for pool in pools for text in pool.chosen(view, top) if text.strip()]
        if min(len(people), len(machine)) < MIN_TEXTS:
            return [float("nan")]
        with contextlib.redirect_stdout(io.StringIO()):
            found = self._mauve.compute_mauve(
                p_features=self._features(people),
                q_features=self._features(machine),
                seed=_SEED,
                verbose=False,
            )
        return [100 * float(found.mauve)]

    def _features(self, texts: Sequence[str]) -> Numbers:
        new = sorted({text for text in texts if text not in self._known}, key=len)
        for start in range(0, len(new), _BATCH):
            batch = new[start : start + _BATCH]
            self._known.update(zip(batch, _last_states(self._lm, batch), strict=True))
        return np.stack([self._known[text] for text in texts])


def _loaded(model: str | LanguageModel) -> LanguageModel:
    if isinstance(model, str):
        try:
            model = load(model, dtype="float32")  # scores are the same on every machine
        except ModelError as error:
            raise MissingDataError(f"MAUVE has no model for its features: {error}") from error
    _network(model)
    return model


def _network(lm: LanguageModel) -> Any:
    network = lm.backend.network
    if network is None or network.config.is_encoder_decoder:
        raise MissingDataError(
            f"MAUVE needs the features of a causal transformers model, not {lm.name}: name another"
        )
    return network


def _last_states(lm: LanguageModel, texts: Sequence[str]) -> list[Numbers]:
    import torch

    model = _network(lm)
    limit = lm.backend.capabilities.max_length or 1024
    rows = [torch.tensor(lm.encode(text)[:limit]) for text in texts]
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(lm.backend.device)
    with torch.no_grad():
        # Padding comes after the last token of a text, where a causal model cannot see it.
        states = model.base_model(input_ids=tokens).last_hidden_state
    last = [state[len(row) - 1].float() for state, row in zip(states.cpu(), rows, strict=True)]
    return [np.asarray(state, dtype=np.float32) for state in last]
