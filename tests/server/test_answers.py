"""What the page promises to somebody who knows nothing of trees, in a real browser."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator
from typing import Any

import pytest
from browser import needs_browser
from opened import TEXTS, as_shown
from talk import talking_lm
from watched import browser, visit

import bestk
from bestk.rerank.ngrams import words

pytest.importorskip("fastapi", reason="needs a server: pip install 'bestk[serve]'")
pytest.importorskip("uvicorn", reason="needs a server: pip install 'bestk[serve]'")

from serving import served

__all__ = ["browser", "visit"]  # the fixtures

ASKED = "Tell me of an animal"
LINK = "#prompt=Tell+me+of+an+animal&max_new_tokens=8&run=1"
JARGON = (
    *(
        "mass",
        "frontier",
        "pruned",
        "γ",
        "node",
        "token",
        "budget",
        "expan",
        "tree",
        "beam",
        "nats",
    ),
    *("log p", "sampl", "novelty", "decay", "score", "lane"),
)
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}

pytestmark = needs_browser


@pytest.fixture(scope="module")
def talk() -> Iterator[str]:
    with served(talking_lm()) as server:
        yield f"{server.url}/"


def expected(prompt: Any = None, **settings: Any) -> bestk.SearchResult:
    lm = talking_lm()
    asked = lm.chat_prompt(ASKED) if prompt is None else prompt
    result: bestk.SearchResult = bestk.search(
        lm, asked, **{"num_texts": 10, "max_new_tokens": 8, **settings}
    )
    return result


def differences(texts: list[str]) -> list[float]:
    """The share of each text's words, pairs and triples that no other has, in other words."""
    rows = [[{tuple(w[i : i + n]) for i in range(len(w) - n + 1)} for n in (1, 2, 3)]
            for w in map(words, texts)]  # fmt: skip
    found = []
    for i, row in enumerate(rows):
        others = rows[:i] + rows[i + 1 :]
        shares = [
            sum(all(gram not in other[n] for other in others) for gram in grams) / len(grams)
            for n, grams in enumerate(row)
            if grams
        ]
        found.append(sum(shares) / len(shares) if shares else 0.0)
    return found


def test_the_first_screen_is_in_plain_words_with_three_settings(visit: Any, talk: str) -> None:
    shown = visit(talk)
    seen = shown.page.inner_text("body").lower()
    options = " ".join(shown.page.locator("option").all_text_contents()[:16]).lower()
    labels = shown.page.locator(".field-label")
    assert [label.inner_text() for label in labels.all() if label.is_visible()] == [
        "How many",
        "How long",
        "How different",
    ]
    assert [word for word in JARGON if word in seen + options] == []
    shown.advanced()
    assert shown.page.locator("#settings").is_visible()
    shown.js("document.querySelectorAll('details').forEach((at) => (at.open = true))")
    label = shown.page.locator("[data-setting=min_prob] .field-label").inner_text()
    assert label == "Least chance of a next piece γ", "plain words, and the paper's symbol"
    symbols = [at.inner_text() for at in shown.page.locator(".symbol").all()]
    assert {"k", "b", "C", "h", "α", "κ", "β", "γ"} <= set(symbols)
    helps = [shown.page.get_by_label(name, exact=True).get_attribute("title") for name in
             ("How many", "How long", "How different")]  # fmt: skip
    assert [text.rsplit(". ", 1)[1][0] for text in helps] == ["n", "T", "μ"]


def test_ten_answers_with_how_likely_and_how_different(visit: Any, talk: str) -> None:
    shown = visit(talk)
    shown.fill(ASKED, max_new_tokens=8)
    shown.page.click("#run")
    shown.until(lambda: shown.state is not None, "a search")
    shown.ended()
    result = expected()
    assert len(result.texts) == 10
    assert shown.texts() == as_shown(result.texts)
    assert shown.page.inner_text(".outcome-title") == "10 answers"
    assert not shown.page.locator("canvas").count(), "no tree is drawn that nobody asked for"
    cards = shown.page.locator(".answer").all()
    for card, text, different in zip(
        cards, result.hypotheses, differences(result.texts), strict=True
    ):
        likely = math.exp(text.log_prob / text.num_tokens)
        told = card.locator(".is-likely").get_attribute("title")
        assert int(re.search(r"(\d+)%", told)[1]) == pytest.approx(100 * likely, abs=0.51)
        told = card.locator(".is-different").get_attribute("title")
        assert int(re.search(r"(\d+)%", told)[1]) == pytest.approx(100 * different, abs=0.51)
        assert re.search("likely", card.inner_text(), re.I)
        assert re.search("different|Much the same", card.inner_text())


@pytest.mark.parametrize(("width", "columns"), [(390, 1), (1440, 3), (2560, 5)])
def test_answers_take_the_width_of_the_window(
    visit: Any, talk: str, width: int, columns: int
) -> None:
    shown = visit(talk, LINK, viewport={"width": width, "height": 1000})
    shown.ended()
    boxes = [card.bounding_box() for card in shown.page.locator(".answer").all()]
    assert len({round(box["x"]) for box in boxes}) == columns
    right = max(box["x"] + box["width"] for box in boxes)
    assert right - boxes[0]["x"] > 0.9 * min(width, 2464)
    assert max(box["width"] for box in boxes) < 600, "lines that can be read"


def test_on_a_phone_the_answers_follow_the_prompt(visit: Any, talk: str) -> None:
    shown = visit(talk, LINK, **PHONE)
    shown.ended()
    first = shown.page.locator(".answer").first.bounding_box()
    prompt = shown.page.locator("#prompt").bounding_box()
    assert prompt["y"] + prompt["height"] < first["y"]
    assert first["y"] + first["height"] < 844, "without scrolling"


def test_answers_stay_where_they_are_written(visit: Any) -> None:
    with served(talking_lm(pause=0.02)) as server:
        shown = visit(server.url, LINK.replace("=8", "=6"))
        shown.until(lambda: shown.page.locator(".answer.is-draft").count() == 10, "ten beginnings")
        look = """[...document.querySelectorAll(".answer")].map((at, i) => {
          at.number ??= i;
          const { x, y } = at.getBoundingClientRect();
          return [at.number, at.querySelector(".answer-text").textContent, x, y]; })"""
        seen: list[list[list[Any]]] = []
        while (now := shown.js(f"[bestk.app.search.run.state, {look}]"))[0] == "running":
            seen.append(now[1])
        shown.ended()
        for before, after in itertools.pairwise(seen):
            for was, now in zip(before, after, strict=False):  # more may come
                assert was[0] == now[0], "no card changes its place"
                assert was[2:] == now[2:]
                assert now[1].startswith(was[1]), "texts only grow"
        begun = {number: text for number, text, *_ in seen[-1]}
        kept = [now for now in shown.js(look) if now[1].startswith(begun.get(now[0]) or "\0")]
        assert len(kept) >= 8, "the cards themselves go to their places"
        assert shown.texts() == as_shown(expected(max_new_tokens=6).texts)


def test_more_like_this_goes_on_from_the_beginning(visit: Any, talk: str) -> None:
    shown = visit(talk, LINK)
    shown.ended()
    before = shown.texts()
    with shown.page.expect_request("**/v1/search") as sent:
        shown.page.get_by_role("button", name="More like this, answer 3", exact=True).click()
    body = json.loads(sent.value.post_data)
    begin = " ".join(before[2].split()[:3])
    assert (body["begin"].strip(), body["novelty"]) == (begin, 0.5)
    shown.until(lambda: not shown.js("bestk.app.isBusy"), "the search")
    lm = talking_lm()
    wanted = expected(lm.encode_begun(lm.chat_prompt(ASKED), body["begin"]), novelty=0.5).texts
    assert shown.texts() == [f"{begin}{text}" for text in wanted]
    assert f"beginning with “{begin}”" in shown.page.inner_text(".outcome-title")
    assert shown.page.input_value("#begin").strip() == begin
    link = shown.js("location.hash")
    other = visit(talk, link)
    assert other.js("bestk.app.asked") == shown.js("bestk.app.asked"), "a link holds it"
    shown.page.get_by_role("button", name="‹ Back").click()
    assert shown.texts() == before
    assert not shown.page.locator("#steering").is_visible()


def test_less_like_this_leaves_its_words_out(visit: Any, talk: str) -> None:
    shown = visit(talk, LINK)
    shown.ended()
    disliked = shown.texts()[0]
    with shown.page.expect_request("**/v1/search") as sent:
        shown.page.get_by_role("button", name="Less like this, answer 1", exact=True).click()
    body = json.loads(sent.value.post_data)
    left_out = {word.lower() for word in body["bad_words"]}
    assert left_out
    assert left_out <= set(words(disliked))
    assert body["novelty"] == 2
    shown.until(lambda: not shown.js("bestk.app.isBusy"), "the search")
    said = {word for text in shown.texts() for word in words(text)}
    assert len(shown.texts()) == 10
    assert not said & left_out
    chips = shown.page.locator("#steering .chip")
    assert chips.count() == len(left_out)
    word = chips.first.inner_text().split()[0]
    chips.first.click()
    assert chips.count() == len(left_out) - 1
    allowed = shown.js("bestk.app.form.asked.settings.bad_words ?? []")
    assert word not in [each.lower() for each in allowed]


def test_the_words_of_a_beginning_and_those_left_out(visit: Any, talk: str) -> None:
    shown = visit(talk)
    steer = "import('/static/steer.js').then((m) => m.{})"
    begin = steer.format("beginningOf(...args)")
    told = shown.js(f"(args) => {begin}", [" One two three four five six seven eight nine."])
    assert told == " One two three"
    assert shown.js(f"(args) => {begin}", ["One two"]) == "One"
    assert shown.js(f"(args) => {begin}", ["東京は大きい"]) == "東京は"
    longer = shown.js(f"(args) => {begin}", ["One two three four five six seven.", "One two three"])
    assert longer == "One two three four five six", "longer than the beginning it had"
    own = steer.format("ownWords(...args)")
    text = "The bakery sells wonderful croissants with a smile"
    others = ["A smile is free", "Croissants and a smile", "Bread"]
    assert shown.js(f"(args) => {own}", [text, others, "About a bakery"]) == ["wonderful", "sells"]
    assert shown.js(f"(args) => {own}", ["It is so", [], "Is it?"]) == ["it", "is", "so"], "or all"


def test_the_tree_is_a_tab(visit: Any, talk: str) -> None:
    shown = visit(talk, LINK)
    shown.ended()
    assert not shown.page.locator("#panel-tree").is_visible()
    shown.show_tree()
    assert shown.page.locator("#panel-tree canvas").is_visible()
    assert not shown.page.locator("#panel-answers").is_visible()
    assert "80 of 80" in shown.page.inner_text(".stats")
    shown.page.click("#tab-answers")
    assert shown.texts() == as_shown(expected().texts)


def test_compare_marks_words_that_columns_share(visit: Any, talk: str) -> None:
    shown = visit(talk)
    shown.page.click("#view-compare")
    shown.fill(ASKED, max_new_tokens=8)
    shown.page.click("#run")
    shown.compared(3)
    lanes = shown.page.locator(".lane").all()
    texts = [lane.locator(".answer-text").all_text_contents() for lane in lanes]
    held = [{word for text in column for word in words(text)} for column in texts]
    for number, lane in enumerate(lanes):
        others = set().union(*held[:number], *held[number + 1 :])
        own = lane.locator("mark.is-own").all_text_contents()
        shared = lane.locator(".is-shared").all_text_contents()
        assert {word.lower() for word in own} == held[number] - others
        assert {word.lower() for word in shared} == held[number] & others
        assert "the model asked" in lane.locator(".lane-spent").inner_text()
    boxes = [lane.bounding_box() for lane in lanes]
    assert len({round(box["y"]) for box in boxes}) == 1, "side by side"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(visit: Any, talk: str, scheme: str) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python"
    ).Axe()
    shown = visit(talk, color_scheme=scheme)

    def check(where: str) -> None:
        found = axe.run(shown.page).response["violations"]
        told = [(each["id"], each["impact"], each["nodes"][0]["html"][:120]) for each in found]
        assert [one for one in told if one[1] in ("serious", "critical")] == [], where

    check("the first screen")
    shown.js("document.querySelectorAll('details').forEach((at) => (at.open = true))")
    check("advanced")
    shown.js("document.querySelectorAll('details').forEach((at) => (at.open = false))")
    shown.open(LINK)
    shown.ended()
    shown.page.get_by_role("button", name="More like this, answer 1", exact=True).click()
    shown.until(lambda: not shown.js("bestk.app.isBusy"), "the search")
    check("answers")
    shown.show_tree()
    check("the tree")
    shown.page.click("#view-compare")
    shown.page.click("#run")
    shown.compared(3)
    shown.page.locator(".numbers > summary").click()
    check("a comparison")
    for key, name in (("h", "history"), ("e", "examples"), ("?", "keys"), ("l", "sharing")):
        shown.page.keyboard.press(key)
        assert shown.page.locator(f"#{name}").is_visible()
        check(name)
        shown.page.keyboard.press("Escape")


def test_it_is_said_that_nothing_was_found(visit: Any, talk: str) -> None:
    shown = visit(talk, LINK.replace("=8", "=2") + "&num_texts=null")
    shown.ended()
    assert shown.page.inner_text(".outcome-title") == "No answers"
    assert "No answer was found" in shown.page.inner_text("#panel-answers")
    assert shown.js(TEXTS) == []
