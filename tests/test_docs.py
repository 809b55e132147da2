"""The code of the docs runs as it stands; what it needs and a test has not is said beside it.

Before a block of Python a page may have a comment that readers do not see: `<!-- given: CODE -->`
runs first, with what the page takes for granted; `<!-- not run: WHY -->` has the block compiled
alone. The blocks of a page share one namespace. Models are tiny ones with the real tokenizer; where
a block prints, and what it prints is shown below it, the embedded model must print that too.
"""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import bestk
from bestk.lm import loading

ROOT = Path(bestk.__file__).parent.parent
BLOCK = re.compile(
    r"(?:<!-- (?P<kind>given|not run):\s+(?P<said>(?:(?!-->).)+)\s+-->\n+)?"
    r"^(?P<indent> *)```python\n(?P<code>.*?)^ *```$(?:\n+^```\n(?P<printed>.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)
PAGES = [
    path
    for path in sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    if "```python" in path.read_text(encoding="utf-8")
]
# Models of the hub that pages name, and what is here in their place.
STAND_INS = {
    "smollm2": "tiny",
    "HuggingFaceTB/SmolLM2-135M-Instruct": "tiny",
    "facebook/bart-large-xsum": str(ROOT / "models" / "multi30k-en-de"),
}


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    kind: str | None
    said: str
    code: str
    printed: str | None

    def run(self, scope: dict[str, Any]) -> None:
        """Run the block, or compile it where it says why it is not run."""
        # The lines above stand empty, so that a traceback names the page's own.
        text, flags = "\n" * self.line + self.code, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(text, str(self.page), "exec", flags=flags)
        if self.kind == "given":
            exec(self.said, scope)
        if self.kind != "not run":
            exec(code, scope)


def blocks(page: Path) -> list[Block]:
    """Return the blocks of Python of a page."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in BLOCK.finditer(text):
        code = re.sub(f"^{match['indent']}", "", match["code"], flags=re.MULTILINE)
        line = text.count("\n", 0, match.start("code"))
        printed = match["printed"] if "print(" in code else None
        found.append(Block(page, line, match["kind"], match["said"], code, printed))
    assert len(found) == text.count("```python"), f"{page}: a block that is not closed"
    return found


@pytest.fixture(scope="module")
def tiny_chat(
    smollm2: bestk.LanguageModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A model of one layer with the embedded model's tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny")
    shutil.copytree(
        loading.source_of("smollm2"),
        folder,
        ignore=lambda _, names: weights(names),
        dirs_exist_ok=True,
    )
    ids = {name: getattr(smollm2.tokenizer, name) for name in ("eos_token_id", "pad_token_id")}
    config = LlamaConfig(
        vocab_size=len(smollm2.tokenizer),
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        initializer_range=1.0,
        **ids,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def weights(names: list[str]) -> list[str]:
    return [name for name in names if not name.startswith(("token", "chat", "special", "vocab"))]


@pytest.fixture
def at_hand(tiny_chat: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What pages call by name is here, and the files they write are nobody's."""
    import transformers

    def here(name: Any) -> Any:
        found = STAND_INS.get(str(name), name)
        return tiny_chat if found == "tiny" else found

    load = bestk.load
    monkeypatch.setattr(bestk, "load", lambda name, **options: load(here(name), **options))
    for kind in ("Tokenizer", "ModelForCausalLM", "ModelForSeq2SeqLM"):
        auto = getattr(transformers, f"Auto{kind}")
        real = auto.from_pretrained
        monkeypatch.setattr(
            auto, "from_pretrained", lambda name, real=real, **more: real(here(name), **more)
        )
    monkeypatch.chdir(tmp_path)


@pytest.mark.model
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page: Path, at_hand: None) -> None:
    scope: dict[str, Any] = {"__name__": page.stem}
    for block in blocks(page):
        block.run(scope)


@pytest.mark.model
@pytest.mark.slow  # searches with the embedded model, 40 tokens deep
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(block.printed for block in blocks(page))],
    ids=lambda page: page.stem,
)
def test_a_page_prints_what_it_shows(
    page: Path,
    smollm2: bestk.LanguageModel,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(bestk, "load", lambda _: smollm2)
    scope: dict[str, Any] = {"__name__": page.stem}
    every = blocks(page)
    last = max(number for number, block in enumerate(every) if block.printed)
    for block in every[: last + 1]:
        block.run(scope)
        printed = capsys.readouterr().out
        if block.printed is not None:
            assert words(printed) == words(block.printed)


def words(printed: str) -> list[str]:
    """Scores may differ in their last digit from one machine to the next; texts may not."""
    return [re.sub(r"-?\d+\.\d+", "0.0", line).strip() for line in printed.splitlines()]
