"""A search as a Graphviz drawing: DOT text, and SVG where the `dot` program is installed.

Knows the graph's nodes and states; how to lay them out is Graphviz's business.
"""

from __future__ import annotations

import shutil
import subprocess
import textwrap

from bestk.errors import BestKError, MissingExtraError
from bestk.result import SearchResult
from bestk.viz.graph import Graph, Node, to_graph

_STYLES = {
    "expanded": 'style="filled,rounded" color="#2c7a9b"',
    "open": 'style="rounded" color="#2c7a9b"',
    "complete": 'style="filled,rounded" color="#2e7d32" penwidth=2',
    "truncated": 'style="rounded,dashed" color="#b26a00"',
    "pruned_frontier": 'style="rounded,dotted" color="#999999" fontcolor="#777777"',
    "pruned_prob": 'style="rounded,dotted" color="#cccccc" fontcolor="#999999"',
}
_PROMPT_WIDTH = 30


def to_dot(result: SearchResult, *, pruned_prob: bool = False) -> str:
    """Return the search as DOT text; children below `min_prob` are drawn where asked for."""
    return render(to_graph(result, frontiers=False, pruned_prob=pruned_prob))


def to_svg(result: SearchResult, *, pruned_prob: bool = False) -> str:
    """Return the search as an SVG picture, drawn by Graphviz."""
    program = shutil.which("dot")
    if program is None:
        raise MissingExtraError(
            "an SVG picture is drawn by Graphviz, whose program 'dot' was not found: install "
            "graphviz, or write .dot or .html instead"
        )
    drawn = subprocess.run(
        [program, "-Tsvg"],
        input=to_dot(result, pruned_prob=pruned_prob),
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if drawn.returncode:
        raise BestKError(f"Graphviz failed: {drawn.stderr.strip() or drawn.returncode}")
    return drawn.stdout


def render(graph: Graph) -> str:
    """Write a graph as DOT text, from left to right, edges marked with probabilities."""
    lines = [
        "digraph search {",
        "  rankdir=LR; nodesep=0.12; ranksep=0.35; ordering=out;",
        '  node [shape=box height=0.25 margin="0.08,0.03" fontname="Helvetica" fontsize=11];',
        '  edge [arrowsize=0.5 color="#888888" fontname="Helvetica" fontsize=9];',
    ]
    ordered = sorted(graph["nodes"], key=lambda n: (n["depth"], -n["probability"], n["id"]))
    prompt = "\n".join(textwrap.wrap(graph["prompt"], _PROMPT_WIDTH))
    for node in ordered:
        label = prompt if node["parent"] is None else node["text"]
        lines.append(
            f"  n{node['id']} [label={quoted(label)} tooltip={quoted(_facts(node))} "
            f"{_STYLES[node['state']]}{_fill(node)}];"
        )
        if node["parent"] is not None:
            mark = quoted(f"{node['probability']:.2f}")
            lines.append(f"  n{node['parent']} -> n{node['id']} [label={mark}];")
    return "\n".join([*lines, "}", ""])


def quoted(text: str) -> str:
    r"""Write text as a DOT string: nothing in it is an escape of DOT's or a line of its own.

    >>> quoted('say "hi" \\N')
    '"say \\"hi\\" \\\\N"'
    """
    text = text.replace("\\", "\\\\").replace('"', '\\"')
    shown = "".join(
        c if c == "\n" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text
    )
    # Graphviz resolves HTML entities in labels, so that "&lt;" would not stay what it is.
    shown = shown.replace("&", "&amp;")
    return '"' + shown.replace("\n", "\\n") + '"'


def _facts(node: Node) -> str:
    facts = [f"{node['state']}, found at step {node['found']}"]
    facts.append(f"p {node['probability']:.4f}, log p {node['log_prob']:.3f}")
    facts.append(f"score {node['score']:.3f}")
    if node["expanded"] is not None:
        facts.append(f"expanded at step {node['expanded']}")
    return "\n".join(facts)


def _fill(node: Node) -> str:
    if node["state"] == "complete":
        return ' fillcolor="#e3f4e4"'
    if node["state"] != "expanded":
        return ""
    # Graphviz takes hue, saturation, value: the likelier, the deeper the blue.
    return f' fillcolor="0.55 {0.08 + 0.45 * node["probability"]:.3f} 1.0"'
