"""Texts read from padded tensors, as a captured graph reads them, against the usual reading."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from tiny_seq2seq import SOURCES, sources_for, tiny

import bestk
from bestk.backends.transformers.encoder_decoder import (
    EncoderDecoderBackend,
    EncoderDecoderSession,
)
from bestk.backends.transformers.model import pad_right
from bestk.backends.transformers.probe import probe_nodes
from bestk.backends.transformers.seq2seq_probe import Probe, reads_tensors
from bestk.engine.batch import Batch
from bestk.nodes import BatchSpec, NodeBatch

TEXTS = ["t5", "flan-t5", "umt5", "bart", "mbart", "mbart50", "marian", "pegasus", "m2m100"]
SPEC = BatchSpec(width=2, slots=6, depth=4, num_children=5)
PATHS = [[[1], [2]], [[1, 3], [2, 4]]]
TOKENS = [0, 9, 12, 30, 17]


def session_of(family: str) -> EncoderDecoderSession:
    backend = EncoderDecoderBackend(tiny(family))
    assert backend.obstacle(SOURCES[0], 1, 8) is None
    backend.model.can_read_tensors = True
    return EncoderDecoderSession(backend.model, SOURCES, SPEC, 16)


def read(session: EncoderDecoderSession, nodes: NodeBatch, sources: Mapping[int, Any]) -> Any:
    """Do what a batch does: pad to a bucket, and fill a few rows up by repeating the first."""
    rows = [*sources, next(iter(sources))]
    texts = [sources[row] for row in rows]
    return session.prefill_tensors(
        nodes, *pad_right(texts, torch.device("cpu"), 11), torch.tensor(rows)
    )


def nodes_of(paths: list[list[int]]) -> NodeBatch:
    return probe_nodes(paths, TOKENS, len(SOURCES), torch.device("cpu"))


def probabilities(session: EncoderDecoderSession) -> list[Any]:
    return [session.logits(nodes_of(paths)).log_softmax(-1) for paths in PATHS]


@pytest.mark.parametrize("family", TEXTS)
def test_tensors_are_read_as_texts_are(family: str) -> None:
    usual, other = session_of(family), session_of(family)
    with torch.inference_mode():
        roots, sources = nodes_of([[]]), dict(enumerate(SOURCES))
        expected = usual.prefill(roots, sources, whole=True).log_softmax(-1)
        found = read(other, roots, sources).log_softmax(-1)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        for one, two in zip(probabilities(usual), probabilities(other), strict=True):
            torch.testing.assert_close(two, one, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_a_source_read_later_leaves_the_other_rows_alone(family: str) -> None:
    session, fresh = session_of(family), session_of(family)
    changed = [SOURCES[0], [31, 4, 4, 19, 8, 2], SOURCES[2]]
    with torch.inference_mode():
        read(session, nodes_of([[]]), dict(enumerate(SOURCES)))
        read(session, nodes_of([[]]), {1: changed[1]})
        read(fresh, nodes_of([[]]), dict(enumerate(changed)))
        for one, two in zip(probabilities(session), probabilities(fresh), strict=True):
            torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["t5gemma", "led", "longt5", "whisper"])
def test_encoders_that_masks_cannot_describe_are_read_as_before(family: str) -> None:
    backend = EncoderDecoderBackend(tiny(family))
    source = sources_for(family)[0]
    backend.obstacle(source, 1, 8)
    assert not reads_tensors(Probe(backend.model, source), EncoderDecoderSession)


def test_a_batch_filled_from_tensors_finds_the_same_trees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The whole of continuous batching, with graphs that are called instead of captured."""

    class Called:
        def __init__(self) -> None:
            self.shapes: list[str] = []

        def feed(self, name: str, tensors: Any) -> list[Any]:
            return [tensor.clone() for tensor in tensors]

        def run(self, name: str, work: Any, *, warm_up: int = 2) -> Any:
            self.shapes.append(name)
            return work()

    model, sources = tiny("bart"), [*SOURCES, [9, 9, 4, 2], [3, 30, 2], [8] * 9]
    options: dict[str, Any] = {"k": 3, "budget": 20, "max_new_tokens": 8, "min_prob": 0.02}
    expected = bestk.search(bestk.from_transformers(model), sources, batch_size=2, **options)
    made: list[Called] = []

    def captured(self: Any, *args: Any) -> None:
        begin(self, *args)
        self.session.model.can_read_tensors = True
        can = self.session.capabilities
        self.session.capabilities = dataclasses.replace(can, static_prefill=True)
        self.graphs = Called()
        made.append(self.graphs)

    begin = Batch.__init__
    monkeypatch.setattr(Batch, "__init__", captured)
    found = bestk.search(bestk.from_transformers(model), sources, batch_size=2, **options)
    assert any("prefill" in name for graphs in made for name in graphs.shapes)
    for one, other in zip(expected, found, strict=True):
        assert one.tree.token.tolist() == other.tree.token.tolist()
