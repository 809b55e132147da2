"""Texts read from padded tensors, as a captured graph reads them, against the usual reading."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from tiny_seq2seq import SOURCES, sources_for, tiny

import bestk
from bestk.backends.base import Children, Group, Room
from bestk.backends.transformers.encoder_decoder import Seq2SeqBackend, Seq2SeqTreeSession
from bestk.backends.transformers.model import pad_right
from bestk.backends.transformers.probe import probe_group
from bestk.backends.transformers.seq2seq_probe import Probe, reads_tensors

TEXTS = ["t5", "flan-t5", "umt5", "bart", "mbart", "mbart50", "marian", "pegasus", "m2m100"]
ROOM = Room(width=2, capacity=6, depth=4, num_children=5, prompt_size=16)
PATHS = [[[1], [2]], [[1, 3], [2, 4]]]
TOKENS = [0, 9, 12, 30, 17]


def session_of(family: str) -> Seq2SeqTreeSession:
    backend = Seq2SeqBackend(tiny(family))
    assert backend.obstacle(SOURCES[0], 8) is None
    backend.checkpoint.can_read_tensors = True
    return Seq2SeqTreeSession(backend.checkpoint, SOURCES, ROOM)


def read(session: Seq2SeqTreeSession, group: Group, sources: Mapping[int, Any]) -> Children:
    """Do what lanes do: pad to a bucket, and fill a few rows up by repeating the first."""
    rows = [*sources, next(iter(sources))]
    texts = [sources[row] for row in rows]
    return session.read(group, *pad_right(texts, torch.device("cpu"), 11), torch.tensor(rows))


def group_of(paths: list[list[int]]) -> Group:
    return probe_group(paths, TOKENS, len(SOURCES), torch.device("cpu"))


def probabilities(session: Seq2SeqTreeSession) -> list[Any]:
    return [session.logits(group_of(paths)).log_softmax(-1) for paths in PATHS]


@pytest.mark.parametrize("family", TEXTS)
def test_tensors_are_read_as_texts_are(family: str) -> None:
    usual, other = session_of(family), session_of(family)
    with torch.inference_mode():
        expected = usual.root(group_of([[]]))
        found = read(other, group_of([[]]), dict(enumerate(SOURCES)))
        torch.testing.assert_close(found.log_prob, expected.log_prob, rtol=1e-4, atol=1e-4)
        assert found.token.tolist() == expected.token.tolist()
        for one, two in zip(probabilities(usual), probabilities(other), strict=True):
            torch.testing.assert_close(two, one, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_a_source_read_later_leaves_the_other_rows_alone(family: str) -> None:
    session, fresh = session_of(family), session_of(family)
    changed = [SOURCES[0], [31, 4, 4, 19, 8, 2], SOURCES[2]]
    with torch.inference_mode():
        read(session, group_of([[]]), dict(enumerate(SOURCES)))
        read(session, group_of([[]]), {1: changed[1]})
        read(fresh, group_of([[]]), dict(enumerate(changed)))
        for one, two in zip(probabilities(session), probabilities(fresh), strict=True):
            torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["t5gemma", "led", "longt5", "whisper"])
def test_encoders_that_masks_cannot_describe_are_read_as_before(family: str) -> None:
    backend = Seq2SeqBackend(tiny(family))
    source = sources_for(family)[0]
    backend.obstacle(source, 8)
    assert not reads_tensors(Probe(backend.checkpoint, source), Seq2SeqTreeSession)


def test_what_is_not_a_text_is_read_as_before() -> None:
    session = session_of("bart")
    assert session.can_read(SOURCES)
    assert not session.can_read([session.checkpoint.encode(SOURCES[:1])])
    session.checkpoint.can_read_tensors = False
    assert not session.can_read(SOURCES)


def test_lanes_filled_from_tensors_find_the_same_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole of continuous batching, with graphs that are called instead of captured."""
    from bestk.engine import lanes

    class Called:
        def __init__(self) -> None:
            self.shapes: list[str] = []

        def inputs(self, name: str, device: Any, *shapes: Any) -> list[Any]:
            return [torch.zeros(shape, dtype=torch.int64) for shape in shapes]

        def replay(self, name: str, work: Any, *, warm_up: bool = False) -> Any:
            self.shapes.append(name)
            return work()

    model, sources = tiny("bart"), [*SOURCES, [9, 9, 4, 2], [3, 30, 2], [8] * 9]
    options: dict[str, Any] = {"k": 3, "budget": 20, "max_new_tokens": 8, "min_prob": 0.02}
    expected = bestk.search(bestk.from_transformers(model), sources, batch_size=2, **options)
    made: list[Called] = []

    def captured(self: Any, *args: Any) -> None:
        begin(self, *args)
        self.session.checkpoint.can_read_tensors = True
        self.graphs = Called()
        made.append(self.graphs)

    begin = lanes.Lanes.__init__
    monkeypatch.setattr(lanes.Lanes, "__init__", captured)
    found = bestk.search(bestk.from_transformers(model), sources, batch_size=2, **options)
    assert any("fill" in name for graphs in made for name in graphs.shapes)
    for one, other in zip(expected, found, strict=True):
        assert one.tree.token.tolist() == other.tree.token.tolist()
