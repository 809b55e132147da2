"""Images of messages: what is read, what is refused and how, and which models take them."""

from __future__ import annotations

import base64
import builtins
import io
import logging
from pathlib import Path
from typing import Any

import pytest
import tiny
import tiny_vision
from PIL import Image
from tiny_vision import chat, data_url, image, made, png

import bestk
from bestk.errors import MissingExtraError, PromptError
from bestk.lm.images import ImageLimits, from_data_url, image_of
from bestk.rerank.base import source_text
from bestk.viz.graph import to_graph


@pytest.fixture
def lm() -> Any:
    return bestk.from_transformers(*made("llava"))


def refused(lm: Any, prompt: Any) -> str:
    with pytest.raises(PromptError) as error:
        lm.encode(prompt)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_an_image_is_given_in_four_ways(lm: Any, tmp_path: Path) -> None:
    picture, path = image(1), tmp_path / "cat.png"
    picture.save(path)
    url = data_url(picture)
    parts = [
        {"type": "image", "image": picture},
        {"type": "image", "image": str(path)},
        {"type": "image", "path": path},
        {"type": "image", "image": url},
        {"type": "image_url", "image_url": {"url": url}},
    ]
    encoded = [lm.encode([{"role": "user", "content": [part]}]) for part in parts]
    assert len({repr(prompt) for prompt in encoded}) == 1


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp", "gif"])
def test_data_urls_of_four_formats(kind: str) -> None:
    opened = image_of({"type": "image", "image": data_url(image(1), kind)})
    assert opened.size == (20, 12)
    assert opened.mode == "RGB"


def test_a_picture_of_any_mode_is_read_upright() -> None:
    for mode in ("1", "L", "P", "RGBA", "CMYK", "I;16"):
        assert image_of({"type": "image", "image": Image.new(mode, (4, 6))}).mode == "RGB"
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6  # lies on its side
    image(1).save(file, "jpeg", exif=exif)
    file.seek(0)
    assert image_of({"type": "image", "image": Image.open(file)}).size == (12, 20)


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ({"type": "image", "image": "http://x.org/cat.png"}, "no address is fetched"),
        ({"type": "image", "url": "file:///etc/passwd"}, "no address is fetched"),
        ({"type": "image_url", "image_url": {"url": "https://x.org"}}, "no address is fetched"),
        ({"type": "image", "image": "data:text/html;base64,AA"}, "must be a data URL of png"),
        ({"type": "image", "image": "data:image/png;base64,A!"}, "is not base64"),
        ({"type": "image", "image": "data:image/png;base64,QUJD"}, "cannot be read"),
        ({"type": "image", "image": "nowhere.png"}, "cannot be read: "),
        ({"type": "image", "image": __file__}, "cannot be read: cannot identify"),
        ({"type": "image", "image": 3}, "got int"),
        ({"type": "image"}, "an image is given once"),
        ({"type": "image", "image": "a", "path": "b"}, "an image is given once"),
        ({"type": "video", "video": "a.mp4"}, "a part of a message is text or an image"),
        ("text", "a part of a message is text or an image"),
    ],
)
def test_what_is_no_image_is_refused(lm: Any, part: Any, told: str) -> None:
    assert told in refused(lm, [{"role": "user", "content": [part]}])


def test_a_broken_image_is_refused(lm: Any) -> None:
    whole = base64.b64decode(data_url(image(1, 200, 200)).partition(",")[2])
    half = base64.b64encode(whole[: len(whole) // 2]).decode()
    part = {"type": "image", "image": f"data:image/png;base64,{half}"}
    assert "the image cannot be read" in refused(lm, [{"role": "user", "content": [part]}])


def test_limits_of_images_from_outside() -> None:
    limits = ImageLimits(bytes=2000, pixels=10_000)
    assert from_data_url(data_url(image(1)), limits).size == (20, 12)
    with pytest.raises(PromptError, match="at most 2000 bytes on this server"):
        from_data_url(data_url(image(1, 100, 100)), limits)
    with pytest.raises(PromptError, match="at most 10000 pixels on this server, got 101 x 100"):
        from_data_url(png(101, 100), limits)
    with pytest.raises(PromptError, match="cannot be read"):  # by Pillow itself
        from_data_url(png(60_000, 60_000), limits)


def test_texts_that_name_images_are_refused(lm: Any) -> None:
    for prompt in ("what is <image>", [4, 55], chat("what is <image>")):
        assert "<image>, which stands for an image" in refused(lm, prompt)
    assert "cannot take the messages" in refused(lm, chat("what is <image>", image(1)))


def test_a_model_that_reads_text_alone_says_so() -> None:
    alone = bestk.from_transformers(tiny.model("llama"), tiny_vision.tokenizer(chat_template="x"))
    assert "reads text alone: leave the images out" in refused(alone, chat(image(1)))
    without = bestk.from_transformers(made("llava")[0], made("llava")[1].tokenizer)
    assert "has no processor for images" in refused(without, chat(image(1)))


def test_a_processor_is_taken_by_any_model() -> None:
    """Of a model without images it is the tokenizer that counts."""
    processor = made("llava")[1]
    lm = bestk.from_transformers(tiny.fresh("llama", vocab_size=62), processor)
    assert lm.tokenizer is processor.tokenizer
    assert lm.encode("what is this") == processor.tokenizer("what is this")["input_ids"]


def test_messages_without_images_may_be_text(lm: Any) -> None:
    listed = lm.encode(chat("what is this"))
    assert lm.encode([{"role": "user", "content": "what is this"}]) == listed
    assert lm.encode(lm.chat_prompt("what is this")) == listed
    assert isinstance(listed, list)


def test_a_result_tells_of_images_and_keeps_none(lm: Any, tmp_path: Path) -> None:
    image(1).save(tmp_path / "cat.png")
    prompt = chat("what is", image(1), "and")
    prompt[0]["content"].append({"type": "image", "image": str(tmp_path / "cat.png")})
    result = bestk.search(lm, prompt, max_new_tokens=3, budget=6)
    told = bestk.SearchResult.from_json(result.to_json()).prompt[0]["content"]
    assert told[1] == {"type": "image", "image": "<20x12>"}
    assert told[3] == {"type": "image", "image": str(tmp_path / "cat.png")}
    assert to_graph(result)["prompt"] == "user: what is [image] and [image]"
    assert source_text(result.prompt) == "what is [image] and [image]"


def test_without_pillow_the_extra_is_named(lm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "PIL":
            raise ModuleNotFoundError("No module named 'PIL'", name="PIL")
        return plain(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"pip install 'bestk\[images\]'"):
        lm.encode([{"role": "user", "content": [{"type": "image", "image": "cat.png"}]}])


@pytest.mark.parametrize("family", ["llava", "idefics3", "gemma3"])
def test_load_finds_model_and_processor(family: str, tmp_path: Path) -> None:
    model, processor = made(family)
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    loaded, given = bestk.load(tmp_path), bestk.from_transformers(model, processor)
    prompt = chat("what is", image(1))
    options: dict[str, Any] = {"max_new_tokens": 3, "budget": 6}
    one, other = (bestk.search(lm, prompt, **options) for lm in (loaded, given))
    assert type(loaded.backend.network) is type(model)
    assert one.texts == other.texts
    assert one.hypotheses or one.notice


def test_load_without_a_processor_reads_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, processor = made("llava")
    model.save_pretrained(tmp_path)
    processor.tokenizer.save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING, "bestk"):
        lm = bestk.load(tmp_path)
    assert "reads text alone: its processor cannot be loaded" in caplog.text
    assert lm.encode("what is this")
    assert "has no processor for images" in refused(lm, chat(image(1)))
