"""Pictures in files: DOT, SVG, the graph, and the command that writes them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
import typer
from test_html import HOSTILE, toy_result

from bestk.cli.show import show
from bestk.errors import MissingExtraError, OptionError, SchemaError
from bestk.viz import dot
from bestk.viz.files import read_result, write_picture
from bestk.viz.graph import schema, to_graph

needs_graphviz = pytest.mark.skipif(
    shutil.which("dot") is None, reason="needs Graphviz: apt-get install graphviz"
)


def test_dot_has_every_node_and_edge() -> None:
    result = toy_result()
    graph = to_graph(result)
    text = dot.to_dot(result, pruned_prob=True)
    nodes = re.findall(r"^  n(\d+) \[", text, re.MULTILINE)
    edges = re.findall(r"^  n(\d+) -> n(\d+) \[", text, re.MULTILINE)
    assert sorted(map(int, nodes)) == [node["id"] for node in graph["nodes"]]
    wanted = {(node["parent"], node["id"]) for node in graph["nodes"][1:]}
    assert {(int(a), int(b)) for a, b in edges} == wanted


def test_dot_leaves_out_what_is_below_gamma_unless_asked() -> None:
    result = toy_result(min_prob=0.2, min_children=1, max_children=7)
    assert len(dot.to_dot(result)) < len(dot.to_dot(result, pruned_prob=True))


@needs_graphviz
def test_svg_shows_hostile_text_as_text() -> None:
    result = toy_result(prompt='say "hi" \\N \\l &lt; ' + HOSTILE, budget=6)
    drawing = ElementTree.fromstring(dot.to_svg(result))
    space = "{http://www.w3.org/2000/svg}"
    texts = ["".join(text.itertext()) for text in drawing.iter(f"{space}text")]
    assert not list(drawing.iter(f"{space}script"))
    assert 'say "hi" \\N \\l &lt;' in " ".join(texts)
    assert any("</script><script>hack()</script>" in text for text in texts)


@needs_graphviz
def test_labels_come_through_graphviz_unchanged() -> None:
    for label in [
        'a"b',
        "back\\slash",
        "\\n",
        "&amp;",
        "<b>",
        "naïve 犬",
        "{x|y}",
        "%s",
        "ends \\",
    ]:
        source = f"digraph {{ n [label={dot.quoted(label)}]; }}"
        drawn = subprocess.run(
            ["dot", "-Tsvg"], input=source, capture_output=True, encoding="utf-8", check=True
        )
        node = next(
            text
            for text in ElementTree.fromstring(drawn.stdout).iter()
            if text.tag.endswith("}text")
        )
        assert (node.text or "").replace("\N{NO-BREAK SPACE}", " ") == label


def test_svg_without_graphviz_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dot.shutil, "which", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"install graphviz, or write \.dot or \.html"):
        dot.to_svg(toy_result())


def run_show(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(show)
    return app(list(arguments), standalone_mode=False)


@pytest.mark.parametrize("ending", [".html", ".dot", ".json", ".HTML"])
def test_show_draws_a_saved_result(
    tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, picture = tmp_path / "result.json", tmp_path / f"tree{ending}"
    saved.write_text(toy_result().dumps(tree=True), encoding="utf-8")
    run_show(str(saved), "-o", str(picture))
    text = picture.read_text(encoding="utf-8")
    beginnings = {
        ".html": "<!doctype html>",
        ".dot": "digraph",
        ".json": '{"format": "bestk.graph"',
    }
    assert text.startswith(beginnings[ending.lower()])
    if ending == ".json":
        jsonschema.validate(json.loads(text), schema())
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"wrote {picture}\n"


def test_bad_files_are_told_in_a_line(tmp_path: Path) -> None:
    result = toy_result()
    with pytest.raises(OptionError, match=r"must end in one of \.html, \.dot, \.svg, \.json"):
        write_picture(result, tmp_path / "tree.png")
    with pytest.raises(OptionError, match="cannot write"):
        write_picture(result, tmp_path / "nowhere" / "tree.dot")
    with pytest.raises(OptionError, match=r"cannot read .*No such file"):
        read_result(tmp_path / "nothing.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    with pytest.raises(OptionError, match="not UTF-8"):
        read_result(tmp_path / "bytes.json")
    (tmp_path / "other.json").write_text("{}", encoding="utf-8")
    with pytest.raises(SchemaError, match="must have format"):
        read_result(tmp_path / "other.json")
    (tmp_path / "treeless.json").write_text(result.dumps(), encoding="utf-8")
    with pytest.raises(OptionError, match="tree=True"):
        write_picture(read_result(tmp_path / "treeless.json"), tmp_path / "tree.html")
