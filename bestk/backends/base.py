"""What the engine asks of a language model: prompts in, logits or listed children of any node out.

A `Backend` is a model; it opens a `Session` for a batch of searches, which is told of every node
once and may keep what it computed for it. What they can do they declare: nobody has to try. Knows
tokens and probabilities; nothing of scores, frontiers, requests or text.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from bestk.errors import OptionError
from bestk.nodes import BatchSpec, Children, NodeBatch

_Prompted = TypeVar("_Prompted", bound="PromptSession")


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a backend, or one of its sessions, can do."""

    full_logits: bool = True  # else likely tokens are listed: no processors, grammars or samplers
    max_listed: int | None = None  # tokens listed per node at the most
    way_out: str = ""  # what lifts a limit, such as "start the server with --max-logprobs"
    resize: bool = False  # running searches can go on in a batch of another size
    static: bool = False  # `evaluate` is a fixed series of kernels: a CUDA graph can hold it
    static_prefill: bool = False  # so is `prefill_tensors`
    normalised: bool = False  # what is given are log-probabilities
    max_length: int | None = None  # tokens of prompt and text together
    max_source_length: int | None = None  # tokens that an encoder reads
    ridge: int = 0  # nodes of a pass that hardly cost more than one does; 0: each costs the same
    max_rows: int | None = None  # searches that are worth a pass; None: as many as fit


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Room for searches: bytes, or tokens of an engine's cache."""

    free: int
    per_search: int


class Context(NamedTuple):
    """What a text follows on; `prompt` holds what had to be computed to know it."""

    prompt: Any
    ids: Sequence[int]  # before the first generated token
    source: Sequence[int]  # what an encoder read, else the same


class Session(ABC):
    """The searches of one batch, a row each, as the model sees them."""

    capabilities = Capabilities()

    @abstractmethod
    def prefill(self, nodes: NodeBatch, prompts: Mapping[int, Any], *, whole: bool) -> Any:
        """Read prompts into rows; return what `evaluate` does for `nodes`, their roots.

        Rows of the result that were not read mean nothing.
        """

    @abstractmethod
    def evaluate(self, nodes: NodeBatch, *, whole: bool) -> Tensor | Children:
        """Return logits [batch, nodes, vocab]; or a list of children, unless `whole` is wanted."""

    def prefill_tensors(
        self, nodes: NodeBatch, tokens: Tensor, lengths: Tensor, rows: Tensor
    ) -> Tensor:
        """Do what `prefill` does, from tensors: the part that a CUDA graph can hold."""
        raise AssertionError("only sessions with static_prefill read tensors")

    def resize(self, rows: Sequence[int], batch: int, prompt_size: int) -> Session:
        """Return a session of another size that goes on with these searches, in its first rows."""
        raise AssertionError("this session was asked to resize, and does not declare it")

    @abstractmethod
    def close(self) -> None:
        """Free what the session holds. May be called twice."""


class Backend(ABC):
    """A language model over token ids."""

    name: str  # for signatures
    vocab_size: int
    eos_ids: tuple[int, ...]  # that complete a text
    capabilities = Capabilities()
    network: Any = None  # the model of transformers, where one is at hand

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device that the tensors of a search should live on."""

    @abstractmethod
    def start(self, prompts: Sequence[Any], spec: BatchSpec, prompt_size: int = 0) -> Session:
        """Open a session for a batch; prompts to come may have up to `prompt_size` tokens."""

    def kind(self, prompt: Any, spec: BatchSpec) -> Hashable:
        """Name the kind of session that serves a prompt: those of one batch must be alike."""
        return None

    def contexts(self, prompts: Sequence[Any]) -> list[Context]:
        """Return what stands before the first generated token of each prompt."""
        return [Context(prompt, prompt, prompt) for prompt in prompts]

    def check(self, spec: BatchSpec, *, whole: bool) -> None:
        """Refuse a search that asks for more than the model gives."""
        can, most = self.capabilities, self.capabilities.max_listed
        way_out = f", or {can.way_out}" if can.way_out else ""
        if whole and not can.full_logits:
            raise OptionError(
                f"{self.name} lists at most {most} of its {self.vocab_size} tokens, and what was "
                "asked for (a sampler, or a setting that shapes probabilities or constrains texts) "
                f"needs them all: use a transformers model{way_out}"
            )
        if most is not None and spec.num_children > most:
            raise OptionError(
                f"{self.name} lists at most {most} tokens, and this search looks at "
                f"{spec.num_children} per node: set max_children={most}{way_out}"
            )

    def memory(self, spec: BatchSpec, prompt_size: int) -> Memory | None:
        """Return the room for such searches, None where nobody knows."""
        return None

    def facts(self) -> dict[str, Any]:
        """Return what the numbers depend on besides the weights, as plain data."""
        return {"dtype": "", "device": self.device.type}


class PromptSession(Session):
    """A session that keeps nothing but the prompts, a row each."""

    capabilities = Capabilities(resize=True)
    prompts: list[Any]

    def resize(self: _Prompted, rows: Sequence[int], batch: int, prompt_size: int) -> _Prompted:
        """Return a session of another size that goes on with these searches."""
        other = copy.copy(self)
        idle = self.prompts[:1] * (batch - len(rows))
        other.prompts = [*(self.prompts[row] for row in rows), *idle]
        return other

    def close(self) -> None:
        """Forget the prompts."""
        self.prompts = []
