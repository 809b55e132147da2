"""The page of `bestk serve` in a real browser, on a real server: searches, links, history, keys."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import needs_browser
from hostile import HOSTILE, WORDS, hostile_lm
from opened import PROMPT, TOY, as_shown, download
from watched import browser, visit

import bestk
from bestk.rerank.ngrams import distinctness

pytest.importorskip("fastapi", reason="needs a server: pip install 'bestk[serve]'")
pytest.importorskip("uvicorn", reason="needs a server: pip install 'bestk[serve]'")

from serving import served

from bestk.server.app import Access
from bestk.server.limits import Limits

__all__ = ["browser", "visit"]  # the fixtures

STATIC = Path(bestk.__file__).parent / "server" / "static"
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


@pytest.fixture(scope="module")
def toy() -> Iterator[str]:
    with served(hostile_lm()) as server:
        yield f"{server.url}/"


def expected(prompt: str = PROMPT, **settings: Any) -> bestk.SearchResult:
    result: bestk.SearchResult = bestk.search(hostile_lm(), prompt, **{**TOY, **settings})
    return result


# ---- a search -----------------------------------------------------------------------------------


@needs_browser
@pytest.mark.model
def test_a_real_search_grows_before_the_eyes(visit: Any, smollm2: bestk.LanguageModel) -> None:
    # Seconds of search, even on a machine that does nothing else: who looks must see it grow.
    settings: dict[str, Any] = {"max_new_tokens": 16, "beam_size": 12, "scoring": "sum"}
    prompt = "The best thing about having a dog is"
    with served(smollm2) as server:
        shown = visit(server.url)
        shown.fill(prompt, stop=".", num_texts=None, **settings)
        shown.advanced()
        shown.page.check("[value=continue]")
        shown.page.click("#run")
        shown.until(lambda: shown.state is not None, "a search")
        shown.show_tree()
        size = "window.bestk.app?.search.viewer?.graph.nodes.size ?? 0"
        texts = "document.querySelectorAll('.answer.is-found').length"
        seen: list[tuple[int, int]] = []
        while shown.state not in ("done", "failed", "stopped"):
            now = shown.js(f"[{size}, {texts}, bestk.app.search.run?.state]")
            if now[2] == "running" and now[0] and (not seen or seen[-1][0] != now[0]):
                seen.append((now[0], now[1]))
        shown.ended()
        result = bestk.search(smollm2, prompt, raw=True, stop=".", **settings)
        assert len(seen) >= 3, f"the tree grew while it was watched: {seen}"
        assert seen == sorted(seen)
        assert seen[0][0] < seen[-1][0] <= shown.js(size)
        assert 0 < max(count for _, count in seen[:-1]) < len(result.texts), "texts came one by one"
        assert shown.texts() == as_shown(result.texts)
        shown.until(lambda: not shown.js("bestk.app.search.viewer.graph.isLive"), "the last of it")
        assert str(len(result.texts)) in shown.page.inner_text("#said"), "told to screen readers"
        assert "192 of 192" in shown.page.inner_text(".stats")


@needs_browser
def test_markup_stays_text(visit: Any, toy: str) -> None:
    shown = visit(toy)
    shown.run(HOSTILE)
    assert "</script><script>hack()</script>" in " ".join(shown.texts())
    assert shown.texts() == as_shown(expected(HOSTILE).texts)
    shown.page.keyboard.press("h")
    assert "<script>hack()" in shown.page.inner_text("#history-list")
    shown.page.keyboard.press("Escape")
    shown.page.click("#view-compare")
    shown.page.click("#run")
    shown.compared(3)
    assert "</script><script>hack()</script>" in shown.page.inner_text(".lanes")
    shown.open(shown.js("location.hash"))
    assert shown.page.input_value("#prompt") == HOSTILE.replace("\u2028", "\u2028")
    assert shown.js("document.querySelectorAll('body script, body img, body b').length") == 0
    assert shown.js("typeof hack") == "undefined"


@needs_browser
def test_a_stopped_search_keeps_its_texts_and_frees_the_server(visit: Any) -> None:
    with served(hostile_lm(pause=0.03)) as server:
        shown = visit(server.url)
        shown.fill(**{**TOY, "beam_size": 40})
        shown.page.click("#run")
        shown.until(lambda: len(shown.texts()) >= 3, "some texts")
        shown.show_tree()
        assert shown.js("bestk.app.search.viewer.graph.nodes.size") > 3, "they are in a tree"
        shown.page.keyboard.press("Control+Enter")
        shown.page.keyboard.press("Escape")
        shown.ended("stopped")
        found = shown.texts()
        assert len(found) >= 3
        assert sum(url.endswith("/v1/search") for url in shown.requests) == 1, "one at a time"
        shown.until(lambda: server.loop.num_running == 0, "the server to let go")
        assert "Stopped" in shown.page.inner_text(".outcome-sub")
        saved = json.loads(download(shown, "Save").read_text(encoding="utf-8"))
        assert as_shown([text["text"] for text in saved["hypotheses"]]) == found
        assert "bestk-graph" in download(shown, "Save the tree").read_text(encoding="utf-8")
        shown.page.keyboard.press("h")
        assert "Once upon a time" in shown.page.inner_text("#history-list")
        shown.page.keyboard.press("Escape")
        shown.page.click("#run")
        shown.until(lambda: shown.state == "running", "another search")
        shown.js("location.hash = '#prompt=Next&run=1&k=2&beam_size=2&max_new_tokens=6'")
        next_one = "bestk.app.search.run.request.prompt"
        shown.until(lambda: shown.js(next_one) == "Next", "a link opened while a search runs")
        shown.ended()


@needs_browser
def test_methods_without_a_tree_show_their_texts(visit: Any, toy: str) -> None:
    shown = visit(toy)
    shown.advanced()
    shown.page.select_option("#method", "BS")
    shown.run()
    beams = bestk.run_method(hostile_lm(), PROMPT, "BS", **TOY)
    assert shown.texts() == as_shown(beams.texts)
    shown.show_tree()
    assert shown.page.locator("canvas").count() == 0
    assert "no tree" in shown.page.inner_text("#panel-tree")
    assert shown.page.get_by_role("button", name="Save the tree").is_disabled()


# ---- settings and errors ------------------------------------------------------------------------


@needs_browser
def test_every_setting_has_a_control_and_a_line_of_help(visit: Any, toy: str) -> None:
    from dataclasses import fields

    shown = visit(toy)
    rows = shown.js(
        """[...document.querySelectorAll(".field[data-setting]")].map((row) => [row.dataset.setting,
             row.querySelector(".field-help").textContent, row.querySelector("label").htmlFor])"""
    )
    assert {f.name for f in fields(bestk.SearchConfig)} <= {name for name, _, _ in rows}
    assert all(text for _, text, _ in rows)
    assert all(shown.page.locator(f"#{control}").count() == 1 for _, _, control in rows)
    assert shown.js("bestk.app.form.asked.settings") == {}, "defaults are not sent"
    values = {"stop": "a\\n\nb", "stop_ids": "3, 4", "bad_words_ids": "1, 2\n3", "top_k": "7"}
    shown.fill(**values, decay="log", min_prob="0.1")
    assert shown.js("bestk.app.form.asked.settings") == {
        "stop": ["a\n", "b"],
        "stop_ids": [3, 4],
        "bad_words_ids": [[1, 2], [3]],
        "top_k": 7,
        "decay": "log",
        "min_prob": 0.1,
    }
    shown.set("num_texts", 7)
    assert shown.js("bestk.app.form.asked.settings.num_texts") == 7, (
        "any number, not only the usual"
    )
    shown.page.click("#reset")
    assert shown.js("bestk.app.form.asked.settings") == {}
    assert shown.js("bestk.app.form.settings.sent") == {"num_texts": 10, "max_new_tokens": 40}


@needs_browser
def test_errors_are_words_where_they_belong(visit: Any) -> None:
    with served(hostile_lm(), limits=Limits(budget=500, k=50)) as server:
        shown = visit(server.url)
        shown.expected = ("Failed to load resource",)
        shown.page.click("#run")
        assert "prompt is empty" in shown.page.inner_text("#problem")
        assert shown.focused() == "prompt"
        shown.fill(k="0")
        shown.page.click("#run")
        assert "at least 1" in shown.page.inner_text("[data-setting=k] .field-error")
        assert shown.state is None, "nothing was sent"
        shown.set("k", 5)
        shown.set("min_new_tokens", 99)
        shown.page.click("#run")
        shown.ended("failed")
        rule = "min_new_tokens must be at most max_new_tokens"
        assert rule in shown.page.inner_text(".search-view > .problem")
        assert rule in shown.page.inner_text("[data-setting=min_new_tokens] .field-error")
        assert shown.js("document.activeElement.closest('.field').dataset.setting") == (
            "min_new_tokens"
        )
        shown.set("min_new_tokens", 0)
        shown.set("k", 60)
        shown.page.click("#run")
        shown.until(lambda: "at most 50" in shown.page.inner_text("main"), "the server's limit")
        shown.set("k", 5)
        shown.set("beam_size", 1000)
        shown.page.click("#run")
        assert "more than this server writes at once" in shown.page.inner_text("#problem")
        shown.set("beam_size", 4)
        shown.context.set_offline(True)
        shown.page.click("#run")
        shown.until(lambda: "cannot be reached" in shown.page.inner_text("main"), "the break")
        shown.context.set_offline(False)
        shown.page.get_by_role("button", name="Try again").click()
        shown.until(lambda: shown.state == "done", "a search after the errors")
        assert not shown.page.locator(".search-view > .problem").is_visible()


@needs_browser
def test_a_busy_server_says_so(visit: Any) -> None:
    with served(hostile_lm(pause=0.05), limits=Limits(searches=1, queue=1)) as server:
        first, second, third = (visit(server.url) for _ in range(3))
        third.expected = ("Failed to load resource",)
        link = "#prompt=Hi&run=1&num_texts=null&k=2&beam_size=40&max_new_tokens=6"
        first.open(link)
        first.until(lambda: first.texts(), "a search that runs")
        second.open(link)
        waiting = "Waiting: this search is next"
        second.until(lambda: waiting in second.page.inner_text("main"), "a search that waits")
        third.open(link)
        third.ended("failed")
        assert re.search(r"busy: try again in \d+ s", third.page.inner_text("main"))
        first.page.click("#stop")
        first.ended("stopped")
        second.until(lambda: second.texts(), "its turn")


@needs_browser
def test_the_token_is_asked_for(visit: Any) -> None:
    with served(hostile_lm(), access=Access(token="open sesame")) as server:
        shown = visit(server.url, token=["wrong", "open sesame"])
        shown.expected = ("Failed to load resource",)
        shown.run()
        assert shown.texts() == as_shown(expected().texts)
        shown.open()
        assert not shown.page.locator("#token").is_visible(), "kept while the tab is open"
        assert "sesame" not in shown.js("JSON.stringify({...localStorage})")


# ---- links, history, export ---------------------------------------------------------------------


@needs_browser
def test_a_link_brings_everything_back(visit: Any, toy: str) -> None:
    shown = visit(toy)
    prompt = 'Two lines\n& "signs" <b> + 50% #é'
    shown.fill(prompt, **{**TOY, "stop": "a\\n", "must_include": "dog\nruns|sleeps"})
    shown.advanced()
    shown.page.check("[value=continue]")
    shown.page.select_option("#method", "BKS_last")
    asked = shown.js("bestk.app.asked")
    shown.page.click("#share")
    link = shown.page.input_value("#share-link")
    other = visit(toy, link.removeprefix(toy))
    assert other.js("bestk.app.asked") == asked
    assert other.page.input_value("#prompt") == prompt
    assert other.page.input_value("[data-setting=must_include] textarea") == "dog\nruns|sleeps"
    assert other.state is None, "a plain link waits for its reader"


@needs_browser
def test_a_link_can_run_by_itself_and_the_address_is_one(visit: Any, toy: str) -> None:
    shown = visit(toy)
    shown.fill(**TOY)
    shown.page.click("#share")
    shown.page.check("#share-run")
    other = visit(toy, shown.page.input_value("#share-link").removeprefix(toy))
    other.ended()
    assert other.texts() == as_shown(expected().texts)
    third = visit(toy, other.js("location.hash"))
    assert third.js("bestk.app.asked") == other.js("bestk.app.asked")


@needs_browser
def test_what_a_link_gets_wrong_is_told(visit: Any, toy: str) -> None:
    shown = visit(toy, "#prompt=Hi&beam_width=3&k=%7B&method=XYZ&run=1")
    told = shown.page.inner_text("#problem")
    for part in ("no setting beam_width", "link's k cannot be read", "no method XYZ"):
        assert part in told
    assert shown.page.input_value("#prompt") == "Hi"
    assert shown.state is None, "a link that is not understood does not run"


@needs_browser
def test_history_lists_reopens_deletes_and_clears(visit: Any, toy: str) -> None:
    shown = visit(toy)
    shown.run("The first one")
    first = shown.texts()
    shown.run("The second one", beam_size=3)
    shown.page.click("#open-history")
    rows = shown.page.locator("#history-list li")
    assert rows.count() == 2
    assert "The second one" in rows.first.inner_text()
    rows.nth(1).locator(".history-open").click()
    assert shown.texts() == first
    shown.show_tree()
    assert shown.page.locator("canvas").count() == 1, "the tree is still in memory"
    assert shown.page.input_value("#prompt") == "The first one"
    assert shown.page.input_value("[data-setting=beam_size] input[type=number]") == "4"
    shown.open()
    shown.page.click("#open-history")
    assert rows.count() == 2, "kept when the page is left"
    rows.nth(1).locator(".history-open").click()
    assert shown.texts() == first
    shown.show_tree()
    assert "ask again" in shown.page.inner_text("#panel-tree")
    shown.page.click("#open-history")
    shown.page.get_by_label("Delete: The second one").click()
    assert rows.count() == 1
    shown.page.click("#history-clear")
    assert rows.count() == 1, "asks twice"
    shown.page.click("#history-clear")
    assert "Nothing yet" in shown.page.inner_text("#history-list")
    shown.open()
    shown.page.click("#open-history")
    assert "Nothing yet" in shown.page.inner_text("#history-list")


@needs_browser
def test_a_full_store_drops_the_oldest(visit: Any, toy: str) -> None:
    shown = visit(toy)
    shown.js(
        """() => { const setItem = Storage.prototype.setItem;
             Storage.prototype.setItem = function (name, value) {
               if (value.length > 16_000) throw new DOMException("full", "QuotaExceededError");
               setItem.call(this, name, value);
             }; }"""
    )
    for number in range(5):
        shown.run(f"Number {number}")
    shown.page.click("#open-history")
    rows = shown.page.locator("#history-list li")
    assert 0 < rows.count() < 5
    assert "Number 4" in rows.first.inner_text()


@needs_browser
def test_exports_open_elsewhere(visit: Any, toy: str) -> None:
    shown = visit(toy)
    shown.run()
    saved = download(shown, "Save").read_text(encoding="utf-8")
    result = bestk.SearchResult.from_json(saved)
    assert result.texts == expected().texts
    assert "bestk-graph" in result.to_html(), "the tree is in it"
    shown.show_tree()
    page = download(shown, "Save the tree")
    assert not re.search(r"(?:src|href)\s*=", page.read_text(encoding="utf-8"))
    shown.page.goto("about:blank")
    other = shown.context.new_page()
    other.goto(page.rename(page.with_suffix(".html")).as_uri())
    assert other.locator("[aria-label='Texts, ranked'] button").count() == len(result.texts)


@needs_browser
@pytest.mark.parametrize("is_secure", [True, False])
def test_texts_are_copied(visit: Any, toy: str, is_secure: bool) -> None:
    shown = visit(toy, permissions=["clipboard-read", "clipboard-write"])
    shown.run()
    shown.js("navigator.clipboard.writeText('something else')")
    if not is_secure:  # as on a server elsewhere on the network
        shown.js("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    texts = [text.strip() for text in expected().texts]
    which = next(i for i, text in enumerate(texts) if i and text)
    every, one = ".outcome-head .acts button", ".answer-acts button:first-child"
    for button, number, copied in ((every, 0, "\n".join(texts)), (one, which, texts[which])):
        pressed = shown.page.locator(button).nth(number)
        pressed.click()
        shown.until(lambda at=pressed: at.text_content() == "Copied", "its word")
        shown.page.fill("#prompt", "")
        shown.page.keyboard.press("Control+V")
        assert shown.page.input_value("#prompt") == copied


# ---- comparing ----------------------------------------------------------------------------------


@needs_browser
def test_lanes_are_measured_as_the_library_measures(visit: Any, toy: str) -> None:
    shown = visit(toy)
    shown.page.click("#view-compare")
    shown.fill(**{**TOY, "beam_size": 6})
    shown.page.click("#run")
    shown.compared(3)
    settings: dict[str, Any] = {**TOY, "beam_size": 6}
    results = [
        bestk.search(hostile_lm(), PROMPT, **settings),
        bestk.run_method(hostile_lm(), PROMPT, "BS", **settings),
        bestk.run_method(hostile_lm(), PROMPT, "Ncls0.8", **settings),
    ]
    shown.page.locator(".numbers > summary").click()
    rows = shown.page.locator("tbody tr")
    assert rows.count() == 3
    for row, result in zip(rows.all(), results, strict=True):
        cells = {
            name: row.locator(f"[data-measure={name}]").inner_text()
            for name in ("found", "unique", "complete", "d1", "d2", "d3", "expanded")
        }
        assert cells["unique"] == str(len(result.texts))
        assert cells["found"] == str(len(result.raw))
        assert cells["expanded"] == str(result.cost.expanded)
        assert cells["complete"] == str(sum(h.is_complete for h in result.hypotheses))
        shares = [100 * value for value in distinctness(result.texts[:10])]
        assert [cells["d1"], cells["d2"], cells["d3"]] == [f"{value:.1f}" for value in shares]
    lanes = shown.page.locator(".lane")
    for lane, result in zip(lanes.all(), results, strict=True):
        spent = lane.locator(".lane-spent").inner_text()
        assert re.fullmatch(
            rf"{len(result.texts)} answers? in [\d.]+ s, "
            rf"the model asked {result.cost.expanded} times",
            spent,
        )
    lanes.first.get_by_text("Open alone").click()
    assert shown.texts() == as_shown(results[0].texts)
    shown.show_tree()
    assert shown.page.locator("canvas").count() == 1


@needs_browser
def test_two_settings_side_by_side(visit: Any, toy: str) -> None:
    shown = visit(toy)
    shown.page.click("#view-compare")
    shown.fill(**TOY)
    shown.page.get_by_role("button", name="Two settings").click()
    second = shown.page.locator(".lane").nth(1)
    second.get_by_label("Change a setting in this column").select_option("scoring")
    second.get_by_label("What counts as good in this column").select_option("last")
    link = shown.js("(bestk.app.remember(), location.hash)")
    shown.page.click("#run")
    shown.compared(2)
    for lane, scoring in enumerate(("mean", "last")):
        texts = shown.page.locator(".lane").nth(lane).locator(".answer-text").all_text_contents()
        assert as_shown(texts) == as_shown(expected(scoring=scoring).texts)
    other = visit(toy, link)
    assert other.js("bestk.app.asked") == shown.js("bestk.app.asked")
    saved = json.loads(download(shown, "Save").read_text(encoding="utf-8"))
    results = [bestk.SearchResult.from_json(lane["result"]) for lane in saved["lanes"]]
    assert [result.config.scoring for result in results] == ["mean", "last"]
    shown.open()
    shown.page.click("#open-history")
    shown.page.locator(".history-open").click()
    assert shown.page.locator("tbody tr").count() == 2, "a comparison is kept whole"


@needs_browser
def test_distinctness_is_the_library_s(visit: Any, toy: str) -> None:
    shown = visit(toy)
    texts = ["Don't stop, well-known Dog!", "été ÀÇÉ 12x  naïve_ 東京 don’t", "", "a-b-c - a'b'"]
    found = shown.js(
        "(texts) => import('/static/measures.js').then((m) => m.distinctness(texts))", texts
    )
    assert found == pytest.approx(distinctness(texts))


# ---- keys, screens, looks -----------------------------------------------------------------------


@needs_browser
def test_the_keyboard_is_enough(visit: Any, toy: str) -> None:
    link = "#prompt=&num_texts=null&k=2&beam_size=4&max_new_tokens=6&min_prob=0.08"
    shown = visit(toy, link)
    press = shown.page.keyboard.press
    press("Tab")
    assert shown.focused() == "Skip to the answers"
    for name in ("view-search", "view-compare", "open-examples", "open-history"):
        press("Tab")
        assert shown.focused() == name
        outline = shown.js("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", "the focus can be seen"
    press("Tab")
    press("Tab")
    press("Tab")
    assert shown.focused() == "prompt"
    shown.page.keyboard.type(PROMPT)
    settings = []
    while shown.focused() != "run":
        press("Tab")
        label = "document.activeElement.labels?.[0]?.textContent ?? ''"
        settings += [shown.js(label)] if shown.js(label) else []
    assert settings[0] == "How many"
    assert settings[-1] == "How different"
    press("Enter")
    shown.ended()
    assert shown.focused() == "run"
    press("e")
    assert shown.page.locator("#examples").is_visible()
    press("Escape")
    press("?")
    assert "Ctrl or ⌘ + Enter" in shown.page.inner_text("#keys")
    press("Escape")
    press("p")
    assert shown.focused() == "prompt"
    shown.page.keyboard.type("?ehp")
    assert shown.page.input_value("#prompt").endswith("?ehp"), "letters are letters in a field"
    press("Control+Enter")
    shown.until(lambda: not shown.js("bestk.app.isBusy"), "the search")
    press("Escape")
    shown.page.locator("#tab-answers").focus()
    press("ArrowRight")
    assert shown.focused() == "tab-tree"
    assert shown.page.locator("#panel-tree canvas").is_visible()
    press("ArrowLeft")
    shown.page.locator(".answer button").first.focus()
    press("ArrowDown")
    assert shown.focused() == "Copy, answer 2"
    press("r")
    assert shown.page.locator("#panel-tree").is_visible()
    press("a")
    assert shown.page.locator("#settings").is_visible()
    press("a")
    press("h")
    press("Tab")
    press("Enter")
    assert not shown.page.locator("#history").is_visible()
    press("2")
    assert shown.page.locator("#compare-view").is_visible()


@needs_browser
def test_single_letters_can_be_switched_off(visit: Any, toy: str) -> None:
    shown = visit(toy)
    shown.page.click("#open-keys")
    shown.page.uncheck("#single-keys")
    shown.page.keyboard.press("Escape")
    shown.page.keyboard.press("h")
    assert not shown.page.locator("#history").is_visible()
    shown.open()
    shown.page.keyboard.press("h")
    assert not shown.page.locator("#history").is_visible()


@needs_browser
def test_controls_have_names_and_texts_are_announced(visit: Any, toy: str) -> None:
    shown = visit(toy)
    shown.run()
    said = shown.page.locator("[aria-live=polite]#said")
    assert re.match(r"\d+ answers in ", said.inner_text())
    nameless = shown.js(
        """[...document.querySelectorAll("button, input, select, textarea, canvas")]
             .filter((at) => at.getAttribute("aria-hidden") !== "true")
             .filter((at) => !(at.getAttribute("aria-label") || at.labels?.length
               || /[a-z]{2}/i.test(at.textContent)))
             .map((at) => at.outerHTML.slice(0, 80))"""
    )
    assert nameless == []


@needs_browser
@pytest.mark.parametrize("width", [2560, 1000, 390, 320])
def test_no_width_needs_sideways_scrolling(visit: Any, toy: str, width: int) -> None:
    shown = visit(toy, **PHONE | {"viewport": {"width": width, "height": 844}})

    def fits(where: str) -> None:
        assert shown.js("document.documentElement.scrollWidth") <= width, where
        cut = shown.js(
            """[...document.querySelectorAll("button, select, input, textarea, h2, p, dl")]
                 .filter((at) => at.offsetParent && !at.closest(".table-box, .unseen"))
                 .filter((at) => at.getBoundingClientRect().right > innerWidth + 1
                               || at.getBoundingClientRect().left < -1)
                 .map((at) => at.outerHTML.slice(0, 80))"""
        )
        assert cut == [], where

    fits("welcome")
    assert not shown.page.locator("#settings").is_visible(), "folded, so that texts come soon"
    shown.js("document.querySelectorAll('details').forEach((at) => (at.open = true))")
    fits("settings")
    shown.run()
    fits("a search")
    shown.js("document.querySelectorAll('#form details').forEach((at) => (at.open = false))")
    shown.show_tree()
    fits("a tree")
    assert 200 < shown.page.locator("canvas").bounding_box()["height"] < 844, "the tree fits too"
    shown.page.locator("#view-compare").tap()
    fits("lanes")
    shown.page.locator("#run").tap()
    shown.compared(3)
    fits("a comparison")
    shown.page.locator("#open-history").tap()
    fits("history")


@needs_browser
def test_light_and_dark_follow_the_system_until_chosen(visit: Any, toy: str) -> None:
    shown = visit(toy, color_scheme="dark")
    shown.run()
    shown.show_tree()
    look = "[document.documentElement.dataset.theme, bestk.app.search.viewer.theme]"
    ground = "getComputedStyle(document.body).backgroundColor"
    assert shown.js(look) == ["dark", "dark"]
    dark = shown.js(ground)
    shown.page.emulate_media(color_scheme="light")
    shown.until(lambda: shown.js(look) == ["light", "light"], "the system's new choice")
    assert shown.js(ground) != dark
    shown.page.click("#toggle-theme")
    assert shown.js(look) == ["dark", "dark"]
    assert shown.js(ground) == dark
    shown.open()
    assert shown.js("document.documentElement.dataset.theme") == "dark", "the choice stays"


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_their_ground(visit: Any, toy: str, scheme: str) -> None:
    shown = visit(toy, color_scheme=scheme)

    def luminance(name: str) -> float:
        value = shown.js(
            "(n) => getComputedStyle(document.documentElement).getPropertyValue(n)", name
        )
        parts = [int(value.strip()[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return sum(share * x for share, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    for name in ("--ink", "--muted", "--accent", "--good"):
        for ground in ("--surface", "--raised", "--canvas"):
            low, high = sorted((luminance(name), luminance(ground)))
            contrast = (high + 0.05) / (low + 0.05)
            assert contrast >= 4.5, f"{name} on {ground}: {contrast:.2f}"


def test_files_hold_no_markup_of_texts_and_nothing_from_elsewhere() -> None:
    for path in STATIC.iterdir():
        text = path.read_text(encoding="utf-8")
        for danger in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert danger not in text, f"{path.name} holds {danger}"
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), path.name
        if path.suffix == ".html":
            assert not re.search(r"\sstyle=|<style|\son\w+=|<script(?![^>]*src=)", text)
    assert WORDS[-1].startswith("</script>"), "what the other tests look for"
