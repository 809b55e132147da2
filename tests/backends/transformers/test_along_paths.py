"""Attention along paths on a CPU, where trees are large: the model's own numbers."""

from __future__ import annotations

import functools

import pytest
import tiny
import torch

import bestk
from bestk.backends.transformers import attention
from bestk.backends.transformers.decoder_only import TreeSession
from bestk.backends.transformers.model import ModelInfo
from bestk.backends.transformers.probe import trial_obstacle
from bestk.nodes import BatchSpec, NodeBatch


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen2", "mistral"])
def test_a_tree_is_read_as_its_prefixes_are(family: str) -> None:
    session = functools.partial(TreeSession, along_paths=True)
    assert trial_obstacle(ModelInfo(tiny.model(family)), session) is None


@torch.inference_mode()
def test_what_no_node_may_see_does_not_matter() -> None:
    info = ModelInfo(tiny.model("llama"))
    prompts, spec = [[5, 6, 7, 8], [9]], BatchSpec(width=3, slots=9, depth=4, num_children=1)
    path = torch.tensor([[[1, -1, -1, -1], [1, 2, -1, -1], [1, 2, 3, -1]]]).repeat(2, 1, 1)
    path[1, 2], slot = 9, path.amax(dim=2)  # the last place of the second row holds no node
    nodes = NodeBatch(
        token=slot + 10,
        slot=slot,
        depth=(path >= 0).sum(dim=2),
        path=path,
        prefix=path + 10,
        is_valid=slot < 9,
    )
    found = []
    for along_paths in (False, True):
        session = TreeSession(info, prompts, spec, 6, along_paths=along_paths)
        session.prefill(nodes, dict(enumerate(prompts)), whole=True)
        found.append(session.evaluate(nodes)[nodes.is_valid])
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-4)


def test_only_large_trees_are_read_so(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def spy(*arguments: object) -> object:
        calls.append(1)
        return plain(*arguments)

    plain = attention.along_paths
    monkeypatch.setattr(attention, "along_paths", spy)
    lm, trie = bestk.from_transformers(tiny.fresh("llama")), bestk.Trie.from_sequences([[5, 6, 7]])
    bestk.search(lm, [5, 6], max_new_tokens=3)
    assert not calls
    bestk.search(lm, [5, 6], allowed=trie, certify=1)
    assert calls


def test_a_model_whose_attention_is_another_keeps_its_masks() -> None:
    lm = bestk.from_transformers(tiny.model("gemma2"))
    trie = bestk.Trie.from_sequences([[5, 6, 7], [5, 8, 9]])
    assert bestk.search(lm, [5, 6], allowed=trie, certify=2).certified == 2
    assert not lm.backend._along_paths
