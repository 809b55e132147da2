"""The HTML picture in a real browser: exact replay, text that stays text, keys, few primitives."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from browser import ARGUMENTS, CHROMIUM, needs_browser
from hostile import HOSTILE, hostile_lm

import bestk
from bestk.viz.graph import to_graph
from bestk.viz.html import SCRIPTS, STYLES, notebook, render, script_json, static, to_html


def toy_result(prompt: str = "Once upon a time", **options: Any) -> bestk.SearchResult:
    settings = {"k": 2, "beam_size": 4, "max_new_tokens": 6, "max_frontier": 8, "min_prob": 0.08}
    result: bestk.SearchResult = bestk.search(hostile_lm(), prompt, **{**settings, **options})
    return result


def large_result() -> bestk.SearchResult:
    return toy_result(k=10, budget=1100, max_new_tokens=20, max_frontier=6000, min_prob=0.0)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


class Shown:
    """A page with what went wrong in it and what it asked of the network."""

    def __init__(self, browser: Any, content: str, folder: Path, **context: Any) -> None:
        path = folder / "tree.html"
        path.write_text(content, encoding="utf-8")
        size = {"width": 1200, "height": 800}
        self.context = browser.new_context(
            **{"viewport": size, "reduced_motion": "reduce"} | context
        )
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.settle()

    def settle(self) -> None:
        self.js("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def js(self, expression: str, argument: Any = None) -> Any:
        return self.page.evaluate(expression, argument)

    def key(self, *names: str) -> None:
        for name in names:
            self.page.keyboard.press(name)
        self.settle()


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Any]:
    opened: list[Shown] = []

    def open_page(content: str, **context: Any) -> Shown:
        opened.append(Shown(browser, content, tmp_path, **context))
        return opened[-1]

    yield open_page
    for shown in opened:
        shown.context.close()
        assert shown.errors == []
        assert [url for url in shown.requests if not url.startswith("file:")] == []


def expected_states(graph: dict[str, Any], step: int) -> dict[str, str]:
    """Work the states out from the listed frontiers, not from the rule that the page uses."""
    is_open = set(graph["steps"][step]["frontier"])
    expanded = {node for past in graph["steps"][: step + 1] for node in past["expanded"]}
    states = {}
    for node in graph["nodes"]:
        state = node["state"]
        if node["found"] > step:
            state = "unseen"
        elif node["id"] in is_open:
            state = "open"
        elif node["id"] in expanded:
            state = "expanded"
        states[str(node["id"])] = state
    return states


@needs_browser
def test_page_replays_the_search_exactly(show: Any) -> None:
    result = toy_result()
    graph = to_graph(result)
    last = graph["num_steps"] - 1
    assert last > 5
    assert any(node["state"] == "pruned_frontier" for node in graph["nodes"])
    shown = show(to_html(result))
    rows = shown.page.locator("[aria-label='Frontier, best first'] button")
    for step in (0, 3, last, *range(last)):
        shown.js("(step) => bestk.viewer.goto(step)", step)
        assert shown.js("bestk.viewer.states()") == expected_states(graph, step)
        listed = graph["steps"][step]
        wanted = [
            {"id": node, "priority": priority}
            for node, priority in zip(listed["frontier"], listed["priorities"], strict=True)
        ]
        assert shown.js("bestk.viewer.frontier()") == wanted, "not the same to the last bit"
        in_page = rows.evaluate_all(
            "rows => rows.map(r => [+r.dataset.node, r.querySelector('.bk-detail').textContent])"
        )
        assert in_page == [[row["id"], f"{row['priority']:.3f}"] for row in wanted]
        texts = [c for c in graph["completions"] if c["step"] <= step]
        heading = shown.page.get_by_role("heading", name=re.compile("^Texts")).inner_text()
        assert heading == f"Texts ({len(texts)})"


@needs_browser
def test_page_can_be_fed_while_the_search_grows(show: Any) -> None:
    from bestk.viz.graph import difference

    whole = to_graph(toy_result(), frontiers=False)
    small = to_graph(toy_result(budget=5), frontiers=False)
    shown = show(render(small))
    assert shown.js("bestk.viewer.lastStep") == small["num_steps"] - 1
    shown.js("(part) => bestk.viewer.update(part)", difference(small, whole))
    assert shown.js("bestk.viewer.step") == whole["num_steps"] - 1, "the newest step is followed"
    assert shown.js("bestk.viewer.states()") == {
        str(node["id"]): node["state"] for node in whole["nodes"]
    }


@needs_browser
def test_hostile_text_stays_text(show: Any) -> None:
    result = toy_result(prompt=HOSTILE)
    assert any("<script>" in text for text in result.texts)
    shown = show(to_html(result))
    node = next(c for c in to_graph(result)["completions"] if "<script>" in c["text"])
    shown.js("(id) => bestk.viewer.select(id)", node["node"])
    assert shown.page.locator("h1").text_content() == HOSTILE
    assert node["text"] in shown.page.locator(".bk-card mark").inner_text()
    assert shown.js("typeof hack") == "undefined"
    assert shown.js("document.querySelectorAll('script').length") == 2
    assert shown.js("document.querySelectorAll('img, b').length") == 0
    listed = shown.page.locator("[aria-label='Texts, ranked'] .bk-title").all_inner_texts()
    assert any("</script><script>hack()</script>" in text for text in listed)
    assert shown.js("bestk.viewer.graph.prompt") == HOSTILE


@needs_browser
def test_keyboard_alone_is_enough(show: Any) -> None:
    shown = show(to_html(toy_result()))
    last = shown.js("bestk.viewer.lastStep")

    def step() -> int:
        number: int = shown.js("bestk.viewer.step")
        return number

    shown.key("Home")
    assert step() == 0
    shown.key("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft")
    assert step() == 2
    shown.key("End")
    assert step() == last
    shown.key("Space")
    assert shown.js("bestk.viewer.isPlaying")
    shown.key("Space")
    assert not shown.js("bestk.viewer.isPlaying")
    shown.key("End", "Shift+ArrowRight", "Shift+ArrowRight", "Shift+ArrowDown")
    assert shown.js("bestk.viewer.tree.chosen.depth") == 1
    assert shown.page.locator(".bk-card").is_visible()
    shown.key("Shift+ArrowUp")
    while not shown.js("bestk.viewer.tree.chosen.children.length"):
        shown.key("Shift+ArrowDown")
    shown.key("Enter")
    assert shown.js("bestk.viewer.tree.chosen.isCollapsed")
    shown.key("Enter", "Escape")
    assert shown.js("bestk.viewer.tree.chosen") is None
    shown.key("/")
    shown.page.keyboard.type("dog")
    assert shown.js("document.activeElement === bestk.viewer.query")
    assert shown.js("bestk.viewer.tree.matches.size") > 0
    assert step() == last, "keys in a field are typed, not obeyed"
    shown.key("Escape", "?")
    assert shown.page.get_by_role("dialog").is_visible()
    shown.key("Escape")
    assert not shown.page.get_by_role("dialog").is_visible()


@needs_browser
def test_every_control_is_reached_by_tab_named_and_visibly_focused(show: Any) -> None:
    shown = show(to_html(toy_result()))
    shown.js("bestk.viewer.goto(3)")  # some texts are complete, some nodes open
    seen = set()
    for _ in range(40):
        shown.page.keyboard.press("Tab")
        name, outline = shown.js(
            """() => {
              const at = document.activeElement;
              const field = at.closest("label");
              const name = at.getAttribute("aria-label") || (field || at).textContent;
              return [at === document.body ? "" : name, getComputedStyle(at).outlineStyle];
            }"""
        )
        if not name:
            break
        assert outline != "none", f"{name} shows no focus"
        seen.add(name.strip())
    assert {"Colour by", "below min_prob", "Search the tree for a word", "Light or dark"} <= seen
    assert {"Play", "Step of the search", "Zoom in", "Zoom out", "Fit the tree", "Speed"} <= seen
    assert any(name.startswith("Search tree.") for name in seen)
    lists = shown.page.locator(".bk-list")
    assert lists.count() == 2
    for i in range(2):
        stops = lists.nth(i).locator("button[tabindex='0']").count()
        assert stops == 1, "a list is one tab stop; the arrow keys move in it"


@needs_browser
def test_mouse_chooses_folds_pans_and_zooms(show: Any) -> None:
    shown = show(to_html(toy_result()))
    box = shown.page.locator("canvas").bounding_box()

    def place(node: int) -> tuple[float, float, float]:
        at = shown.js("(id) => bestk.viewer.tree.place(bestk.viewer.graph.nodes.get(id))", node)
        return box["x"] + at["x"], box["y"] + at["y"], at["width"]

    best = shown.js("bestk.viewer.graph.completions[0].node")
    shown.js("bestk.viewer.fit()")
    x, y, width = place(best)
    shown.page.mouse.move(x + width / 2, y)
    assert shown.page.get_by_role("tooltip").is_visible()
    assert "complete" in shown.page.get_by_role("tooltip").inner_text()
    shown.page.mouse.click(x + width / 2, y)
    text = shown.js("bestk.viewer.graph.completions[0].text")
    assert shown.js("bestk.viewer.selectedText()") == text
    on_path = shown.js("bestk.viewer.graph.path(bestk.viewer.tree.chosen)[1].id")
    count = shown.js("bestk.viewer.tree.columns.flat().length")
    x, y, width = place(on_path)
    shown.page.mouse.dblclick(x + width / 2, y)
    assert shown.js("bestk.viewer.tree.columns.flat().length") < count, "the branch is folded"
    assert place(on_path)[1] == pytest.approx(y, abs=0.5), "the folded node stays in its place"
    before = shown.js("bestk.viewer.camera")
    shown.page.mouse.move(box["x"] + 600, box["y"] + 500)
    shown.page.mouse.down()
    shown.page.mouse.move(box["x"] + 640, box["y"] + 470, steps=4)
    shown.page.mouse.up()
    after = shown.js("bestk.viewer.camera")
    assert after["x"] - before["x"] == pytest.approx(40, abs=SLOP)
    assert after["y"] - before["y"] == pytest.approx(-30, abs=SLOP)
    shown.page.mouse.wheel(0, -300)
    shown.settle()
    assert shown.js("bestk.viewer.camera")["scale"] > after["scale"]


@needs_browser
def test_two_fingers_zoom_and_a_tap_chooses(show: Any) -> None:
    phone = {"viewport": {"width": 390, "height": 800}, "has_touch": True, "is_mobile": True}
    shown = show(to_html(toy_result()), **phone)
    touch = shown.context.new_cdp_session(shown.page)
    box = shown.page.locator("canvas").bounding_box()

    def fingers(kind: str, *offsets: float) -> None:
        y = box["y"] + 150
        points = [{"x": box["x"] + 180 + x, "y": y, "id": i} for i, x in enumerate(offsets)]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    before = shown.js("bestk.viewer.camera.scale")
    fingers("touchStart", -30, 30)
    fingers("touchMove", -60, 60)
    fingers("touchMove", -90, 90)
    fingers("touchEnd")
    shown.settle()
    assert shown.js("bestk.viewer.camera.scale") == pytest.approx(3 * before, rel=0.1)
    shown.js("bestk.viewer.fit()")
    at = shown.js("bestk.viewer.tree.place(bestk.viewer.graph.nodes.get(1))")
    shown.page.touchscreen.tap(box["x"] + at["x"] + at["width"] / 2, box["y"] + at["y"])
    assert shown.js("bestk.viewer.tree.chosen.id") == 1


SLOP = 11  # the first pixels of a drag may still be a click


@needs_browser
def test_search_finds_words_that_span_tokens(show: Any) -> None:
    result = toy_result()
    shown = show(to_html(result))
    nodes = {node["id"]: node for node in to_graph(result)["nodes"]}
    found = shown.js("bestk.viewer.search('THE DOG')")
    assert found
    for number in found:
        node = nodes[number]
        below = [n for n in nodes.values() if n["parent"] == number]
        starts = node["text"] == " the" and any(n["text"] == " dog" for n in below)
        ends = node["text"] == " dog" and nodes[node["parent"]]["text"] == " the"
        assert starts or ends
    assert shown.js("bestk.viewer.search('zebra')") == []


@needs_browser
def test_loose_bytes_join_to_characters(show: Any) -> None:
    shown = show(to_html(toy_result()))
    assert shown.js("bestk.joinBytes('a <0xF0><0x9F><0x90><0xB6>!')") == "a 🐶!"
    assert shown.js("bestk.joinBytes('a <0xF0><0x9F>')") == "a <0xF0><0x9F>"


@needs_browser
def test_layout_is_tidy(show: Any) -> None:
    """No two nodes overlap, columns are in order, and parents stand beside their first child."""
    shown = show(to_html(toy_result(budget=60, min_prob=0.0, max_new_tokens=12)))
    columns = shown.js(
        "bestk.viewer.tree.columns.map(c => c.map(n => [n.row, n.shown.map(m => m.row)]))"
    )
    for column in columns:
        rows = [row for row, _ in column]
        assert all(b - a >= 1 - 1e-9 for a, b in pairwise(rows))
        for row, children in column:
            assert children == sorted(children)
            assert not children or math.isclose(children[0], row)


@needs_browser
def test_large_tree_draws_little_per_frame(show: Any) -> None:
    """Frames per second are in benchmarks/viz_fps.py; here: how much a frame has to draw."""
    shown = show(to_html(large_result()))
    assert shown.js("bestk.viewer.tree.columns.flat().length") > 5000
    for scale in (None, 0.25, 0.62, 1.0):
        if scale is None:
            shown.js("bestk.viewer.fit()")
        else:
            shown.js("(s) => bestk.viewer.zoom(s / bestk.viewer.camera.scale, 400, 300)", scale)
        shown.settle()
        drawn = shown.js("bestk.viewer.drawn")
        assert drawn["nodes"] + drawn["edges"] + drawn["labels"] < 6000, f"at scale {scale}"
    shown.js("bestk.viewer.tree.pan(1e6, 0)")
    shown.settle()
    assert shown.js("bestk.viewer.drawn") == {"nodes": 0, "edges": 0, "labels": 0}


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_theme_follows_the_system_and_its_button(show: Any, scheme: str) -> None:
    shown = show(to_html(toy_result()), color_scheme=scheme)
    assert shown.js("bestk.viewer.theme") == scheme
    shown.page.get_by_label("Light or dark").click()
    assert shown.js("bestk.viewer.theme") == {"light": "dark", "dark": "light"}[scheme]


@needs_browser
def test_nothing_is_cut_off_at_phone_width(show: Any) -> None:
    shown = show(to_html(toy_result()), viewport={"width": 360, "height": 740})
    assert shown.js("document.documentElement.scrollWidth") <= 360
    cut = shown.js(
        """[...document.querySelectorAll("button, select, input, h1, h2")]
             .filter((at) => at.offsetParent)
             .filter((at) => at.getBoundingClientRect().right > 361).map((at) => at.className)"""
    )
    assert cut == []


@needs_browser
def test_notebook_frame_shows_the_tree(show: Any) -> None:
    content = toy_result(prompt=HOSTILE)._repr_html_()
    shown = show(f"<!doctype html><meta charset=utf-8><body>{content}</body>")
    assert shown.page.locator("ol > li").count() > 1, "the texts come first"
    shown.page.locator("summary").click()
    frame = shown.page.frame_locator("iframe")
    frame.get_by_role("button", name="Play").wait_for()
    assert "Texts" in frame.locator("h2").first.inner_text()


def test_notebook_without_a_tree_lists_the_texts() -> None:
    shown = notebook(toy_result_without_tree())
    assert shown.startswith("<p><b>&lt;b&gt;hi")
    assert "<script>" not in shown
    assert "<details>" not in shown


def toy_result_without_tree() -> bestk.SearchResult:
    from dataclasses import replace

    return replace(toy_result(prompt="<b>hi"), tree=None)


class Scripts(HTMLParser):
    """Collects what an HTML parser takes for scripts and other elements."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.data: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] == ["script"]:
            self.data.append(data)


def test_graph_in_the_page_reads_back() -> None:
    result = toy_result(prompt=HOSTILE)
    parser = Scripts()
    parser.feed(to_html(result))
    assert parser.tags.count("script") == 2
    assert "img" not in parser.tags
    assert json.loads(parser.data[0]) == to_graph(result, frontiers=False)


def test_json_in_a_script_ends_nothing() -> None:
    written = script_json(["</script>", "<!--", "]]>", "\u2028\u2029", "{{style}}"])
    assert not re.search("[<>&\u2028\u2029]", written)
    assert json.loads(written)[0] == "</script>"


def test_page_holds_everything_it_needs() -> None:
    page = to_html(toy_result(prompt="{{style}} {{graph}}"))
    for name in (*SCRIPTS, *STYLES):
        assert static(name) in page
    assert not re.search(r"""(?:src|href)\s*=|@import|url\(|https?://""", page)
    assert "innerHTML" not in page
    assert "{{style}} {{graph}}" in page, "what looks like a mark in the prompt is left alone"


def test_file_is_written(tmp_path: Path) -> None:
    result = toy_result()
    page = result.to_html(tmp_path / "tree.html")
    assert (tmp_path / "tree.html").read_text(encoding="utf-8") == page
