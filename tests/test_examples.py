"""The examples run as they are written."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import bestk

FOLDER = Path(bestk.__file__).parent.parent / "examples"
# One needs a file that is not here: tests/constraints/test_recommending.py makes it one.
EXAMPLES = sorted(path for path in FOLDER.glob("*.py") if path.stem != "recommend")


@pytest.mark.model
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(
    path: Path,
    smollm2: bestk.LanguageModel,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(bestk, "load", lambda _: smollm2)
    runpy.run_path(str(path), run_name="__main__")
    assert len(capsys.readouterr().out.splitlines()) >= 2


NOTEBOOKS = sorted((Path(bestk.__file__).parent.parent / "examples").glob("*.ipynb"))


@pytest.mark.model
@pytest.mark.slow  # each starts a kernel, which imports torch and loads a model
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells), "stored without outputs"
    monkeypatch.setenv("PYTHONPATH", str(path.parent.parent))
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=600, resources=resources).execute()
    assert any(cell.outputs for cell in cells)
