"""Models that read images among text: chat messages with pictures go in, texts come out.

Knows messages, a processor of transformers and placeholders; how the model reads an image is its
own affair. Knows nothing of search.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bestk.backends.transformers.decoder_only import DecoderOnlyBackend
from bestk.backends.transformers.images import ImagePrompt
from bestk.errors import PromptError, first_line
from bestk.lm.images import image_of, is_image, shown
from bestk.lm.language_model import Features, LanguageModel, Prompt


class ImageTextModel(LanguageModel):
    """A model of images and text, and the processor that goes with it.

    Without a processor, or with a tokenizer alone, prompts are text.
    """

    backend: DecoderOnlyBackend

    def __init__(
        self,
        backend: DecoderOnlyBackend,
        tokenizer: Any = None,
        processor: Any = None,
        name: str | None = None,
    ) -> None:
        template = getattr(processor, "chat_template", None)
        super().__init__(backend, tokenizer, name, template)
        self.processor = processor
        self.placeholders = backend.model.placeholders

    def encode(self, prompt: Any) -> Any:
        """Turn a prompt into token ids, or into what holds its images too."""
        return prompt if isinstance(prompt, ImagePrompt) else super().encode(prompt)

    def told(self, prompt: Prompt) -> Any:
        """Return a prompt as results tell of it: images by their path or size."""
        if isinstance(prompt, ImagePrompt):
            return prompt.ids
        if isinstance(prompt, str | Features):
            return prompt
        return [
            {**item, "content": _told(item.get("content"))} if isinstance(item, dict) else item
            for item in prompt
        ]

    def _ids(self, ids: Sequence[int]) -> list[int]:
        if not self.placeholders.isdisjoint(ids):
            found = next(token for token in ids if token in self.placeholders)
            raise PromptError(
                f"the prompt has {self.token_text(found)}, which stands for an image, and no image "
                "belongs to it: give images in messages, and leave the token out of the text"
            )
        return super()._ids(ids)

    def _chat(self, messages: Sequence[Any], **given: Any) -> Any:
        """Encode messages; where they hold images the ids come with what the processor made."""
        images = [part for message in messages for part in _parts(message) if is_image(part)]
        if self.processor is None:
            if images:
                raise PromptError(
                    f"model {self.name} has no processor for images: load it with bestk.load, or "
                    "use bestk.from_transformers(model, processor)"
                )
            return super()._chat(messages, **given)
        listed = [{**message, "content": _opened(_parts(message))} for message in messages]
        try:
            encoded = self.processor.apply_chat_template(
                listed,
                chat_template=self.chat_template or self.tokenizer.chat_template,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
                return_tensors="pt",
                **given,
            )
        except Exception as error:  # templates and processors are programs of their own
            raise PromptError(
                f"the processor of {self.name} cannot take the messages ({first_line(error)}): "
                "each must be a dict with role and content, and texts must not name images"
            ) from error
        ids: list[int] = encoded["input_ids"][0].tolist()
        if not images:
            return self._ids(ids)
        super()._ids(ids)
        beside = ("input_ids", "attention_mask")
        return ImagePrompt(ids, {k: value for k, value in encoded.items() if k not in beside})


def _parts(message: Any) -> list[Any]:
    """List the parts of a message's content; text alone is one part."""
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, Sequence):
        raise PromptError(
            f"the content of a message is text or a list of parts, got {content!r:.60}"
        )
    for part in content:
        is_text = isinstance(part, dict) and part.get("type") == "text"
        if not is_image(part) and not is_text:
            raise PromptError(f"a part of a message is text or an image, got {part!r:.60}")
    return list(content)


def _opened(parts: Sequence[Any]) -> list[Any]:
    return [{"type": "image", "image": image_of(p)} if is_image(p) else p for p in parts]


def _told(content: Any) -> Any:
    if not isinstance(content, Sequence) or isinstance(content, str):
        return content
    return [shown(part) if is_image(part) else part for part in content]
