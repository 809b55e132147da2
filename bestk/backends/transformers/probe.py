"""Decides whether a model's cache can be shared by slots, by what it says and by what it does.

Some architectures say that they cannot (recurrent layers, no positions in `forward`). For the rest
a tiny tree is searched once and compared with plain forward passes of the same prefixes: a family
that ignores positions or masks is found out before it gives a wrong answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bestk.backends.transformers.images import ImagePrompt
from bestk.backends.transformers.model import ModelInfo
from bestk.errors import first_line
from bestk.nodes import BatchSpec, NodeBatch

# Layer types whose keys and values are one per token, addressable by slot.
_SHARED_LAYERS = frozenset({"full_attention", "sliding_attention", "attention", "hybrid_attention"})
_NEEDED = frozenset({"input_ids", "attention_mask", "position_ids", "past_key_values"})


def sharing_obstacle(
    model: ModelInfo, session: Callable[..., Any], image: ImagePrompt | None = None
) -> str | None:
    """Return why this model cannot share its cache by slots, None if it can.

    With a prompt that holds images it is asked of texts that follow these.
    """
    if getattr(model.module, "_is_stateful", False):
        return "since the model is recurrent"
    attention = str(getattr(model.config, "_attn_implementation", None))
    if "flash" in attention or "flex" in attention:
        return f"since {attention} takes no mask of its own for every token"
    missing = _NEEDED - model.accepts
    if missing:
        return f"since its forward takes no {', '.join(sorted(missing))}"
    if "local" in (getattr(model.config, "attention_layers", None) or ()):
        return "since its local attention counts slots, not positions"  # GPT-Neo
    layers = set(getattr(model.config, "layer_types", None) or ())
    other = layers - _SHARED_LAYERS
    if other:
        return f"since it has layers of type {', '.join(sorted(other))}"
    found = trial_obstacle(model, session, image)
    return None if found is None else f"since a tree of masks {found}"


@torch.inference_mode()
def trial_obstacle(
    model: ModelInfo, session: Callable[..., Any], image: ImagePrompt | None = None
) -> str | None:
    """Expand a small tree over two prompts of unequal lengths, and compare with plain forwards.

    Each of those reads one prefix alone: what comes after it, or beside it, must not matter.
    """
    device = model.device
    texts = [token for token in range(model.vocab_size) if token not in model.placeholders]

    def some(count: int, seed: int) -> list[int]:
        return [texts[(seed + 7 * i * i + 3 * i) % len(texts)] for i in range(count)]

    prompts: list[Any] = [some(6, 11) if image is None else image, some(3, 23)]
    # Slots 1 and 2 are siblings, 3 a child of 1, 4 a child of 3: two calls of two nodes each.
    paths = [[[1], [2]], [[1, 3], [1, 3, 4]]]
    tokens = [0, *some(4, 5)]
    if model.padding is not None:  # some models count tokens without it, wherever it is
        tokens[1] = model.padding
    worst = 0.0
    try:
        with model.trial():
            tree = session(model, prompts, BatchSpec(width=2, slots=5, depth=4, num_children=1))
            roots = probe_nodes([[]], tokens, len(prompts), device)
            tree.prefill(roots, dict(enumerate(prompts)), whole=True)
            for call in paths:
                logits = tree.evaluate(probe_nodes(call, tokens, len(prompts), device), whole=True)
                for row, prompt in enumerate(prompts):
                    for place, path in enumerate(call):
                        if prompt is image and len(path) < 3:  # images take long to read
                            continue
                        prefix = prompt + [tokens[slot] for slot in path]
                        plain, _ = model.read(prefix, use_cache=False)
                        worst = max(worst, distance(logits[row, place], plain[0]))
            tree.close()
    except (torch.OutOfMemoryError, NameError):  # neither says anything about the model
        raise
    except Exception as error:  # whatever a family does with masks that it was not written for
        return f"failed with {first_line(error)}"
    if not worst <= tolerance(model):
        return f"changes its log-probabilities (by {worst:.2g})"
    return None


def tolerance(model: ModelInfo) -> float:
    """Return how far apart log-probabilities may be that should be the same.

    Half precision, and float32 products in TF32, round logits to about 2^-8 to 2^-10 of their size;
    a wrong position is off by far more.
    """
    is_exact = model.dtype == torch.float32 and (
        model.device.type != "cuda" or torch.get_float32_matmul_precision() == "highest"
    )
    return 5e-4 if is_exact else 0.25


def distance(one: Tensor, other: Tensor) -> float:
    """Return how far two sets of log-probabilities are apart."""
    plain = other.float().log_softmax(-1)
    difference = one.float().log_softmax(-1) - plain
    # Where a plain forward gives no number either, the weights are at fault, not the tree.
    difference = difference.abs().where(plain.isfinite(), 0.0)
    # The mean, so that single coarse logits of half precision do not decide.
    return float(difference.mean().nan_to_num(nan=torch.inf))


def probe_nodes(
    paths: list[list[int]], tokens: list[int], batch: int, device: torch.device
) -> NodeBatch:
    """Make the nodes that these paths of slots lead to."""
    path = torch.tensor([[*p, *[-1] * (4 - len(p))] for p in paths], device=device)
    slot = torch.tensor([p[-1] if p else 0 for p in paths], device=device)
    table = torch.tensor(tokens, device=device)
    path, slot = path.expand(batch, -1, -1), slot.expand(batch, -1)
    return NodeBatch(
        token=table[slot],
        slot=slot,
        depth=(path >= 0).sum(-1),
        path=path,
        prefix=table[path.clamp(min=0)].where(path >= 0, -1),
        is_valid=torch.ones(slot.shape, dtype=torch.bool, device=device),
    )
