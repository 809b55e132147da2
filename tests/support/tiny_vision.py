"""Tiny random models that read images, with the processors of their families."""

from __future__ import annotations

import base64
import functools
import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from PIL import Image
from tiny import GROUPED
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

SPECIAL = (
    "<pad>", "<s>", "</s>", "<unk>", "<image>", "<video>", "<vs>", "<ve>",
    "<fake_token_around_image>", "<end_of_utterance>", "<global-img>", "\n", "<user>", "<model>",
    *(f"<row_{i}_col_{j}>" for i in range(1, 7) for j in range(1, 7)),
)  # fmt: skip
WORDS = ("what", "is", "this", "a", "cat", "dog", "blue", "red", "and", "here", "tell", "me")
VOCAB = {token: number for number, token in enumerate((*SPECIAL, *WORDS))}
TEXT = GROUPED | {"vocab_size": len(VOCAB), "max_position_embeddings": 256}
VISION = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "initializer_range": 0.3,
}  # fmt: skip
TEMPLATE = (
    "<s>{% for m in messages %}<user>{% for p in m['content'] %}"
    "{% if p['type'] == 'image' %}IMAGE{% else %} {{ p['text'] }} {% endif %}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}<model>{% endif %}"
)
MROPE = {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [1, 1, 2]}
IMAGES = {"image_token_id": VOCAB["<image>"]}
QWEN = {**IMAGES, "video_token_id": VOCAB["<video>"], "vision_start_token_id": VOCAB["<vs>"],
        "vision_end_token_id": VOCAB["<ve>"]}  # fmt: skip


def tokenizer(**more: Any) -> Any:
    """One token for a word."""
    made = Tokenizer(models.WordLevel(VOCAB, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(list(SPECIAL))
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return hf.PreTrainedTokenizerFast(tokenizer_object=made, **names, **more)


def _template(image: str) -> str:
    return TEMPLATE.replace("IMAGE", image)


def _llava() -> tuple[Any, Any]:
    config = hf.LlavaConfig(
        vision_config=hf.CLIPVisionConfig(**VISION, image_size=16, patch_size=8),
        text_config=hf.LlamaConfig(**TEXT),
        **IMAGES,
    )
    size = {"height": 16, "width": 16}
    processor = hf.LlavaProcessor(
        CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size=size),
        tokenizer(),
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=_template("<image>"),
    )
    return hf.LlavaForConditionalGeneration, (config, processor)


def _qwen_processor(kind: Any) -> Any:
    class Videoless(kind):  # type: ignore[misc]
        """Without its processor of videos, which needs torchvision."""

        def check_argument_for_proper_class(self, *_: Any) -> None:
            pass

    # Sides of 8 to 24 pixels: grids of 1 to 9 tokens.
    images = Qwen2VLImageProcessorPil(
        patch_size=4, merge_size=2, temporal_patch_size=2, min_pixels=64, max_pixels=576
    )
    named = {"extra_special_tokens": {"image_token": "<image>", "video_token": "<video>"}}
    return Videoless(images, tokenizer(**named), None, chat_template=_template("<vs><image><ve>"))


def _qwen2_vl() -> tuple[Any, Any]:
    text = {**TEXT, "rope_parameters": {**MROPE}}
    vision = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "patch_size": 4}
    config = hf.Qwen2VLConfig(
        vision_config={**vision, "initializer_range": 0.3}, text_config=text, **QWEN
    )
    return hf.Qwen2VLForConditionalGeneration, (config, _qwen_processor(hf.Qwen2VLProcessor))


def _qwen2_5_vl() -> tuple[Any, Any]:
    text = {**TEXT, "rope_parameters": {**MROPE}}
    vision = {
        "depth": 2, "hidden_size": 32, "out_hidden_size": 32, "num_heads": 4, "patch_size": 4,
        "intermediate_size": 48, "window_size": 16, "fullatt_block_indexes": [1],
        "initializer_range": 0.3,
    }  # fmt: skip
    config = hf.Qwen2_5_VLConfig(vision_config=vision, text_config=text, **QWEN)
    return hf.Qwen2_5_VLForConditionalGeneration, (config, _qwen_processor(hf.Qwen2_5_VLProcessor))


def _qwen3_vl() -> tuple[Any, Any]:
    text = {**TEXT, "head_dim": 8, "rope_parameters": {**MROPE, "mrope_interleaved": True}}
    vision = {
        "depth": 2, "hidden_size": 32, "out_hidden_size": 32, "num_heads": 4, "patch_size": 4,
        "intermediate_size": 48, "num_position_embeddings": 36, "deepstack_visual_indexes": [0, 1],
        "initializer_range": 0.3,
    }  # fmt: skip
    config = hf.Qwen3VLConfig(vision_config=vision, text_config=text, **QWEN)
    return hf.Qwen3VLForConditionalGeneration, (config, _qwen_processor(hf.Qwen3VLProcessor))


def _idefics3(prefix: str) -> tuple[Any, Any]:
    config = getattr(hf, f"{prefix}Config")(
        vision_config={**VISION, "image_size": 16, "patch_size": 4},
        text_config={**TEXT, "model_type": "llama"},
        scale_factor=2,
        pad_token_id=0,
        **IMAGES,
    )
    processor = hf.Idefics3Processor(
        # Tiles of 16 pixels, and the whole image beside them: 4 tokens each.
        Idefics3ImageProcessorPil(
            size={"longest_edge": 32}, max_image_size={"longest_edge": 16}, do_image_splitting=True
        ),
        tokenizer(),
        image_seq_len=4,
        chat_template=_template("<image>"),
    )
    return getattr(hf, f"{prefix}ForConditionalGeneration"), (config, processor)


def _gemma3(window: int) -> tuple[Any, Any]:
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    text = {**TEXT, "head_dim": 8, "sliding_window": window, "layer_types": kinds}
    config = hf.Gemma3Config(
        vision_config={**VISION, "image_size": 16, "patch_size": 4},
        text_config=text,
        mm_tokens_per_image=4,
        boi_token_id=VOCAB["<vs>"],
        eoi_token_id=VOCAB["<ve>"],
        **IMAGES,
    )
    named = {"image_token": "<image>", "boi_token": "<vs>", "eoi_token": "<ve>"}
    size = {"height": 16, "width": 16}
    processor = hf.Gemma3Processor(
        Gemma3ImageProcessorPil(size=size),
        tokenizer(extra_special_tokens=named),
        image_seq_length=4,
        chat_template=_template("<vs>"),
    )
    return hf.Gemma3ForConditionalGeneration, (config, processor)


FAMILIES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "llava": _llava,
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_vl": _qwen3_vl,
    "idefics3": functools.partial(_idefics3, "Idefics3"),
    "smolvlm": functools.partial(_idefics3, "SmolVLM"),
    "gemma3": functools.partial(_gemma3, 64),
    "gemma3 past its window": functools.partial(_gemma3, 5),
}


@functools.cache
def made(family: str) -> tuple[Any, Any]:
    """Return a model and its processor."""
    kind, (config, processor) = FAMILIES[family]()
    torch.manual_seed(0)
    model = kind._from_config(config).eval()
    for name, parameter in model.named_parameters():
        if "mm_input_projection_weight" in name:  # zero until it is trained
            torch.nn.init.normal_(parameter, std=0.3)
    return model, processor


def image(seed: int, width: int = 20, height: int = 12) -> Any:
    """Draw noise."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (height, width, 3), generator=generator, dtype=torch.uint8)
    return Image.fromarray(pixels.numpy())


def data_url(picture: Any, kind: str = "png") -> str:
    """Write an image as browsers and OpenAI's clients send it."""
    file = io.BytesIO()
    picture.save(file, kind)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


def png(width: int, height: int) -> str:
    """A PNG's header alone, which says how large it is."""
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    chunk = b"IHDR" + header
    data = zlib.compress(b"\0" * 100)
    body = struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    body += struct.pack(">I", len(data)) + b"IDAT" + data
    body += struct.pack(">I", zlib.crc32(b"IDAT" + data))
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()


def chat(*parts: Any) -> list[dict[str, Any]]:
    """One message of texts and images."""
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image", "image": part}
        for part in parts
    ]
    return [{"role": "user", "content": content}]
