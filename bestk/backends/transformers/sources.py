"""What an encoder-decoder is told once per source: the encoder's output and the decoder's prompt.

A source is a list of token ids, a tensor of features for models that read sound or pictures, or
what somebody else has encoded already. Knows plain forward passes; knows nothing of trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bestk.backends.base import Context
from bestk.backends.transformers.decoder_prompt import DecoderPrompt, decoder_prompt, setting
from bestk.backends.transformers.limits import is_rescaled
from bestk.backends.transformers.model import ModelInfo, pad_right
from bestk.errors import PromptError

# Encoders with one of these look at blocks of the source, which padding moves or mixes into them.
_SPARSE = ("attention_window", "encoder_attention_type", "block_size")
# Places of a mask that lie on whole lines of memory come in multiples of this many.
_LINE = 8
# Numbers of a mask that is worth spelling out: some tens of megabytes.
_SMALL_MASK = 2**24


@dataclass(frozen=True)
class Encoded:
    """A batch of sources as the decoder sees them, padded on the right.

    All of `prompts` have one length; sources that come encoded bring their own.
    """

    hidden: Float[Tensor, "batch places size"]
    mask: Bool[Tensor, "batch places"] | None  # None where no row is padded
    prompts: list[list[int]]  # the decoder's
    kind: Any  # the class that this model's encoder returns
    ids: Sequence[int] = ()  # of the one source, where it is text

    @classmethod
    def joined(cls, parts: Sequence[Encoded]) -> Encoded:
        """Put sources that were encoded apart into one batch."""
        rows = [row for part in parts for row in part.rows()]
        hidden = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        mask = None
        if len({len(row) for row in rows}) > 1:
            lengths = torch.tensor([len(row) for row in rows], device=hidden.device)
            mask = torch.arange(hidden.shape[1], device=hidden.device) < lengths[:, None]
        prompts = [prompt for part in parts for prompt in part.prompts]
        return cls(hidden, mask, prompts, parts[0].kind)

    def __len__(self) -> int:
        return self.hidden.shape[1]

    def parts(self) -> list[Encoded]:
        """Return each source as a batch of its own; `joined` puts them together again."""
        return [
            Encoded(hidden[None], None, [prompt], self.kind)
            for hidden, prompt in zip(self.rows(), self.prompts, strict=True)
        ]

    def rows(self) -> list[Float[Tensor, "places size"]]:
        """Return each source's own part, without its padding."""
        if self.mask is None:
            return list(self.hidden)
        lengths = self.mask.sum(dim=1).tolist()
        return [hidden[:length] for hidden, length in zip(self.hidden, lengths, strict=True)]

    def options(self, rows: Int[Tensor, " nodes"] | None = None) -> dict[str, Any]:
        """Return what `forward` needs instead of the sources themselves."""
        hidden = self.hidden if rows is None else self.hidden[rows]
        options: dict[str, Any] = {"encoder_outputs": self.kind(last_hidden_state=hidden)}
        if self.mask is not None:
            options["attention_mask"] = (self.mask if rows is None else self.mask[rows]).long()
        return options


Source = Sequence[int] | Tensor | Encoded


class EncoderDecoderInfo(ModelInfo):
    """A loaded encoder-decoder and the facts that a search needs from it."""

    token_input = "decoder_input_ids"

    def __init__(
        self,
        model: Any,
        name: str | None = None,
        prompt: Sequence[int | None] | None = None,
        *,
        has_rules: bool = True,
    ) -> None:
        super().__init__(model, name)
        self.prompt: DecoderPrompt = decoder_prompt(model) if prompt is None else list(prompt)
        self.has_rules = has_rules  # whether the generation config rules tokens out
        self.source_input = str(getattr(model, "main_input_name", "input_ids"))
        sparse = any(getattr(model.config, name, None) for name in _SPARSE)
        self.can_pad = not sparse and not any(map(is_rescaled, model.get_encoder().modules()))
        # What the probe may find to be wrong:
        self.can_mask_one = True  # LED's decoder drops the mask of a single query
        self.hides_padding = False  # T5Gemma's decoder sees no padding token, not even a text's own
        self.can_read_tensors = False  # whether `encode_tensors` gives what `encode` gives

    @property
    def reads_text(self) -> bool:
        """Whether sources are token ids."""
        return self.source_input == "input_ids"

    @property
    def max_length(self) -> int | None:
        """Positions that the decoder has, None where it does not say."""
        return self._limit("max_target_positions", "max_decoder_position_embeddings")

    @property
    def max_source_length(self) -> int | None:
        """Tokens that a source may have, None where there is no limit or no text."""
        return self._limit("max_encoder_position_embeddings") if self.reads_text else None

    def encode(self, sources: Sequence[Source]) -> Encoded:
        """Run the encoder once over all sources, one at a time if padding disturbs it."""
        encoded = [source for source in sources if isinstance(source, Encoded)]
        if encoded:
            assert len(encoded) == len(sources), "sources are encoded all or none"
            return Encoded.joined(encoded)
        if not self.reads_text:
            return self._run_encoder(self._stack(sources), None)
        if not self.can_pad and len(sources) > 1:
            return Encoded.joined([self.encode([source]) for source in sources])
        tokens, lengths = pad_right(cast("Sequence[Sequence[int]]", sources), self.device)
        mask = torch.arange(tokens.shape[1], device=self.device) < lengths[:, None]
        if self.padding is not None:
            tokens = tokens.where(mask, self.padding)
        return self._run_encoder(tokens, mask)

    def encode_tensors(
        self, tokens: Int[Tensor, "batch width"], lengths: Int[Tensor, " batch"]
    ) -> tuple[Any, Float[Tensor, "batch 1 1 places"]]:
        """Encode texts padded on the right without asking the device: the output, and its mask.

        The places are filled up to whole lines of memory where the encoder has positions for them:
        attention would copy its mask in every layer otherwise.
        """
        width, most = tokens.shape[1], self.max_source_length
        spare = -width % _LINE
        if most is None or width + spare <= most:
            tokens = torch.nn.functional.pad(tokens, (0, spare))
        is_seen = torch.arange(tokens.shape[1], device=self.device) < lengths[:, None]
        if self.padding is not None:
            tokens = tokens.masked_fill(~is_seen, self.padding)
        # Four axes, so that the encoder need not build, or look into, a mask of its own.
        mask = self.attention_mask(is_seen[:, None, None], as_numbers=True)
        wide = mask.expand(-1, -1, tokens.shape[1], -1)
        if wide.numel() <= _SMALL_MASK:  # else every layer would do it
            wide = wide.contiguous()
        with self.untouched():
            return self.module.get_encoder()(input_ids=tokens, attention_mask=wide), mask

    def prompt_size(self, source: Source) -> int:
        """Count the decoder's tokens before a text."""
        return len(source.prompts[0] if isinstance(source, Encoded) else self.prompt)

    def contexts(self, sources: Sequence[Source]) -> list[Context]:
        """Return what texts follow on, with the sources encoded if that takes their languages."""
        texts = [source if isinstance(source, list) else () for source in sources]
        if None in self.prompt and not isinstance(sources[0], Encoded):
            sources = self.encode(sources).parts()
        known = [token for token in self.prompt if token is not None]
        return [
            Context(source, source.prompts[0], source.ids or text)
            if isinstance(source, Encoded)
            else Context(source, known, text)
            for source, text in zip(sources, texts, strict=True)
        ]

    def read_padded(
        self, encoded: Encoded, sequences: Sequence[Sequence[int]], rows: Int[Tensor, " nodes"]
    ) -> Float[Tensor, "nodes vocab"]:
        """Return the logits after whole decoder sequences, each over the source of its row."""
        rows = rows.to(self.device)
        options = encoded.options(rows)
        if self.reads_text:  # FSMT hides the future only where it is given some
            options["input_ids"] = torch.zeros_like(rows)[:, None]
        return self.logits_after(sequences, **options, use_cache=False)

    def logits_after(
        self, sequences: Sequence[Sequence[int]], **options: Any
    ) -> Float[Tensor, "nodes vocab"]:
        """Return the logits after whole decoder sequences, over the sources in `options`."""
        return self.last_logits(*pad_right(sequences, self.device), **options)

    def _run_encoder(self, source: Tensor, mask: Bool[Tensor, "batch places"] | None) -> Encoded:
        options = {} if mask is None else {"attention_mask": mask.long()}
        with self.untouched():
            output = self.module.get_encoder()(**{self.source_input: source}, **options)
        hidden = output.last_hidden_state.to(self.device)
        encoded = Encoded(hidden, mask, [], type(output))
        return replace(encoded, prompts=self._prompts(encoded))

    def _stack(self, sources: Sequence[Source]) -> Tensor:
        tensors = [source for source in sources if isinstance(source, Tensor)]
        if len(tensors) < len(sources):
            raise PromptError(
                f"{self.name} reads {self.source_input}, not text: give the prompt as "
                "bestk.Features of what the model's processor returns"
            )
        shapes = {tuple(tensor.shape) for tensor in tensors}
        for shape in shapes:
            if self.source_input == "input_features" and len(shape) != 2:
                raise PromptError(
                    f"features of one sound have two axes, mel bins and frames, got shape {shape}: "
                    "give the rows of a processor's batch one by one"
                )
        if len(shapes) > 1:
            raise PromptError(f"features of one batch must have one shape, got {sorted(shapes)}")
        return torch.stack(tensors).to(self.device, self.dtype)

    def _prompts(self, encoded: Encoded) -> list[list[int]]:
        batch = len(encoded.hidden)
        if None not in self.prompt:
            return [[token for token in self.prompt if token is not None]] * batch
        return [
            [language if token is None else token for token in self.prompt]
            for language in self._detect_languages(encoded)
        ]

    def _detect_languages(self, encoded: Encoded) -> list[int]:
        """Take the likeliest language token after the start token, as Whisper's `generate` does."""
        known = sorted(setting(self.module, "lang_to_id").values())
        starts = cast("list[list[int]]", [self.prompt[:1]] * len(encoded.hidden))
        logits = self.logits_after(starts, **encoded.options(), use_cache=False)
        best = logits[:, known].argmax(dim=-1)
        return [known[i] for i in best.tolist()]

    def _limit(self, *names: str) -> int | None:
        for name in (*names, "max_position_embeddings"):
            length = getattr(self.config, name, None)
            if length:
                return int(length)
        return None
