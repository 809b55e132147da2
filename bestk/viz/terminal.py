"""Search results in a terminal: ranked texts with a summary, and the tree they were found in.

Draws from a SearchResult; tokens become text through the function that the caller gives. Prints
nothing itself: what is returned goes to a rich console.
"""

from __future__ import annotations

import io
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree as Branches

from bestk.core.record import TreeRecord
from bestk.core.tree import State
from bestk.lm.images import content_text
from bestk.rerank.ngrams import is_loop
from bestk.result import Hypothesis, SearchResult

STOP_REASONS = {
    "budget": "budget spent",
    "exhausted": "nothing left to open",
    "max_completions": "enough texts",
    "certified": "enough texts proven",
    "timeout": "time is up",
    "interrupted": "interrupted",
    "broken": "the model broke off",
}

# How a child is drawn by what became of it: a mark, a style, a word for the legend.
_LOOKS = {
    State.EXPANDED: ("●", "", "expanded"),
    State.OPEN: ("○", "cyan", "open"),
    State.COMPLETE: ("✔", "green", "complete"),
    State.TRUNCATED: ("…", "yellow", "too long"),
    State.DROPPED: ("×", "dim", "dropped from the frontier"),
    State.BELOW: ("·", "dim", "not opened"),
}


_MOST_SHOWN = 20  # texts, unless so many were asked for
_LONG = 300  # characters: longer texts are shown as they were written, not as lines of a list
_WIDEST = 100  # columns of text that the eye still follows


def result_view(result: SearchResult) -> RenderableType:
    """Show the texts and the summary of the search; with scores, where these order the texts."""
    chosen = result.hypotheses[: result.config.num_texts or _MOST_SHOWN]
    parts: list[RenderableType] = [Text("no text was completed")]
    if chosen:
        has_long = any("\n" in h.text.strip() or len(h.text) > _LONG for h in chosen)
        parts = _answers(result, chosen) if has_long else [_lines(result, chosen)]
    found = len(result)
    if len(chosen) < found:
        parts.append(Text(f"{found - len(chosen)} more: -n {found} shows all", "dim"))
    return Group(*parts, Text(), summary_view(result))


def plain(view: RenderableType, width: int | None = None) -> str:
    """Return a view as lines without colours, as wide as the terminal unless told otherwise."""
    width = width or min(shutil.get_terminal_size((_WIDEST, 24)).columns, _WIDEST)
    console = Console(file=io.StringIO(), highlight=False, width=width)
    with console.capture() as captured:
        console.print(view)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def shown(hypothesis: Hypothesis) -> str:
    """Return a text as people see it: one that was cut off ends in a sign for it."""
    return hypothesis.text.strip() + ("" if hypothesis.is_complete else " …")


def _lines(result: SearchResult, chosen: Sequence[Hypothesis]) -> RenderableType:
    """Number short texts, one below the other."""
    texts = Table.grid(padding=(0, 2, 0, 0))
    texts.add_column(justify="right", style="dim", no_wrap=True)
    if _is_ordered(result):
        texts.add_column(justify="right", style="cyan", no_wrap=True)
    texts.add_column(overflow="fold")
    for rank, hypothesis in enumerate(chosen, start=1):
        texts.add_row(str(rank), *_scores(result, hypothesis), Text(shown(hypothesis)))
    return texts


def _answers(result: SearchResult, chosen: Sequence[Hypothesis]) -> list[RenderableType]:
    """Show long texts as they were written, each under its number."""
    parts: list[RenderableType] = []
    for rank, hypothesis in enumerate(chosen, start=1):
        head = Text(str(rank), "bold").append("".join(_scores(result, hypothesis, "  ")), "cyan")
        parts += [*([Text()] if parts else []), head, Text(shown(hypothesis))]
    return parts


def _is_ordered(result: SearchResult) -> bool:
    return result.config.policy != "diverse" or any(h.rerank_score for h in result)


def _scores(result: SearchResult, hypothesis: Hypothesis, before: str = "") -> list[str]:
    """Return the number that the texts are in the order of, where there is one."""
    new = hypothesis.rerank_score
    score = hypothesis.score if new is None else new
    return [f"{before}{score:.3f}"] if _is_ordered(result) else []


def summary_view(result: SearchResult) -> RenderableType:
    """Show in a few lines what a search found and what it cost; in one where n were asked for."""
    cut = sum(not hypothesis.is_complete for hypothesis in result)
    if result.config.policy == "diverse":
        return Text(_in_a_line(result, cut), "dim")
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in _facts(result, cut).items():
        table.add_row(name, value)
    return table


def _in_a_line(result: SearchResult, cut: int) -> str:
    cost = result.cost
    told = f"{len(result)} texts"
    if cut:
        told += f", {cut} of them cut off at max_new_tokens={result.config.max_new_tokens}"
    shown = set(result.texts)
    loops = sum(is_loop(text) for text in {found.text for found in result.raw} - shown)
    if loops:
        told += f", {loops} that repeat themselves left out"
    told += f"; {cost.expanded} tokens read in {cost.model_calls} model calls"
    told += "" if cost.seconds is None else f", {cost.seconds:.1f} s"
    is_usual = result.stop_reason in ("budget", "exhausted")
    reason = STOP_REASONS.get(result.stop_reason, result.stop_reason)
    return told + ("" if is_usual else f" ({reason})")


def _facts(result: SearchResult, cut: int) -> dict[str, str]:
    mass, cost = result.mass, result.cost
    shares = {
        "completed": mass.completed,
        "open": mass.frontier,
        "pruned": mass.pruned,
        "too long": mass.truncated,
    }
    reason = STOP_REASONS.get(result.stop_reason, result.stop_reason)
    rows = {
        "unique texts": f"{len(result) - cut} of {result.num_completions} completed"
        + (f" and {cut} cut off" if cut else "")
        + f", {result.num_truncated} too long",
        "expansions": f"{cost.expanded} of {result.config.total_budget} in {cost.model_calls} "
        f"model calls ({reason})",
        "mass seen": ", ".join(f"{_percent(share)} {name}" for name, share in shares.items()),
        "time": "not kept" if cost.seconds is None else f"{cost.seconds:.1f} s",
    }
    if result.certified:
        rows["proven"] = f"{result.certified} texts: no other text is likelier"
    return rows


def tree_view(
    result: SearchResult, tokens_text: Callable[[Sequence[int]], str], *, max_lines: int = 40
) -> RenderableType:
    """Draw the paths of the best texts and the likeliest other branches, in about `max_lines`.

    A run of tokens without a branch is one line, with the probability of the whole run.
    """
    if result.tree is None:
        return Text("the result was kept without its tree", "dim")
    root = _sprouts(result.tree)
    ranks = {hypothesis.token_ids: i for i, hypothesis in enumerate(result.hypotheses, start=1)}
    shown = _select(root, ranks, max_lines)
    picture = Branches(Text(_line(_prompt_text(result.prompt)), "bold"), guide_style="dim")
    for sprout in shown[id(root)]:
        _draw(picture, sprout, shown, ranks, result, tokens_text)
    return Group(picture, Text(), _legend(result.tree, sum(map(len, shown.values()))))


@dataclass
class _Sprout:
    """One child in the tree, with its own children below it."""

    tokens: tuple[int, ...]  # from the prompt on
    state: State
    last_log_prob: float
    log_prob: float
    children: list[_Sprout] = field(default_factory=list)


def _sprouts(record: TreeRecord) -> _Sprout:
    """Link the columns of a record into a tree."""
    root = _Sprout((), State.EXPANDED, 0.0, 0.0)
    nodes = zip(record.parent.tolist(), record.token.tolist(), strict=True)
    slots = {node: slot for slot, node in enumerate(nodes)}  # by parent slot and token
    expanded = {0: root}
    columns = (record.child_parent, record.child_token, record.child_log_prob, record.child_state)
    for parent, token, last, state in zip(*(c.tolist() for c in columns), strict=True):
        above = expanded[parent]  # slots are in the order of expansion: parents come first
        sprout = _Sprout((*above.tokens, token), State(state), last, above.log_prob + last)
        above.children.append(sprout)
        if sprout.state is State.EXPANDED:
            expanded[slots[parent, token]] = sprout
    return root


def _select(
    root: _Sprout, ranks: dict[tuple[int, ...], int], max_lines: int
) -> dict[int, list[_Sprout]]:
    """Choose the children to draw of every drawn node: best texts first, then likely branches."""
    by_tokens = {sprout.tokens: sprout for sprout in _walk(root)}
    drawn: set[tuple[int, ...]] = {()}
    lines = 0
    for tokens in sorted(ranks, key=ranks.__getitem__):
        if lines >= max_lines * 3 // 4:
            break
        path = [tokens[: i + 1] for i in range(len(tokens)) if tokens[: i + 1] not in drawn]
        # A new branch off an unbranched run is a line of its own and splits the run in two.
        lines += 2 if path and lines else 1
        drawn.update(path)
    others = [
        child
        for tokens in drawn
        for child in by_tokens[tokens].children
        if child.tokens not in drawn and child.state is not State.BELOW
    ]
    others.sort(key=lambda sprout: (-sprout.log_prob, sprout.tokens))
    drawn.update(sprout.tokens for sprout in others[: max(0, (max_lines - lines) // 2)])
    return {
        id(by_tokens[tokens]): [c for c in by_tokens[tokens].children if c.tokens in drawn]
        for tokens in drawn
    }


def _draw(
    branch: Branches,
    sprout: _Sprout,
    shown: dict[int, list[_Sprout]],
    ranks: dict[tuple[int, ...], int],
    result: SearchResult,
    tokens_text: Callable[[Sequence[int]], str],
) -> None:
    """Add a run of tokens to the picture, then what branches off its end."""
    start, log_prob = len(sprout.tokens) - 1, sprout.last_log_prob
    below = shown[id(sprout)]
    while len(below) == 1:
        sprout = below[0]
        log_prob += sprout.last_log_prob
        below = shown[id(sprout)]
    mark, style, _ = _LOOKS[sprout.state]
    rank = ranks.get(sprout.tokens)
    label = Text(f"{mark} ", style, no_wrap=True, overflow="ellipsis")
    label.append(_line(tokens_text(sprout.tokens[start:])), "bold green" if rank else style)
    label.append(f"  {_percent(math.exp(log_prob))}", "dim")
    if rank is not None:
        label.append(f"  #{rank} {result.hypotheses[rank - 1].score:.3f}", "bold")
    twig = branch.add(label)
    for child in below:
        _draw(twig, child, shown, ranks, result, tokens_text)


def _legend(record: TreeRecord, num_shown: int) -> Text:
    counts = record.child_state.tolist()
    legend = Text(f"{num_shown} of {len(counts)} nodes drawn: ", "dim")
    words = [
        f"{mark} {counts.count(state)} {word}"
        for state, (mark, _, word) in _LOOKS.items()
        if state in counts
    ]
    return legend.append(", ".join(words))


def _walk(sprout: _Sprout) -> list[_Sprout]:
    found = [sprout]
    for entry in found:
        found += entry.children
    return found


def _prompt_text(prompt: object) -> str:
    """Show a prompt of any kind: of chat messages the last."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Sequence) and prompt and isinstance(prompt[-1], dict):
        return content_text(prompt[-1].get("content", ""))
    return " ".join(map(str, prompt)) if isinstance(prompt, Sequence) else str(prompt)


def _line(text: str) -> str:
    """Keep a text on one line, its own line breaks shown as a sign."""
    return text.strip().replace("\n", "⏎")


def _percent(share: float) -> str:
    if abs(share) < 1e-9:  # what rounding leaves of nothing
        return "0%"
    return f"{share:.1%}" if share >= 0.001 else "<0.1%"
