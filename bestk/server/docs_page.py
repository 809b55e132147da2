"""`/docs`: the OpenAPI document as a page to read, with nothing loaded from elsewhere.

Written from the document alone, so it cannot tell other than `/openapi.json` does.
"""

from __future__ import annotations

import html
import json
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

# No script runs on the page, and its style is its own.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"
_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
code { font-family: ui-monospace, monospace; font-size: .9em; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1rem; }
th, td { border-bottom: 1px solid #8886; padding: .3rem .6rem .3rem 0; text-align: left;
         vertical-align: top; overflow-wrap: anywhere; }
h2 { border-top: 1px solid #8886; margin-top: 2rem; padding-top: 1rem; }
summary { cursor: pointer; }
"""


def install(app: FastAPI) -> None:
    """Add the page to an application."""

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(page(app.openapi()), headers={"Content-Security-Policy": _POLICY})


def page(document: dict[str, Any]) -> str:
    """Write an OpenAPI document as HTML."""
    info = document["info"]
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_text(info['title'])} API</title><style>{_STYLE}</style>",
        f"<h1>{_text(info['title'])} {_text(info['version'])}</h1>",
        f"<p>{_text(info.get('description', ''))}</p>",
    ]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts.append(_operation(document, f"{method.upper()} {path}", operation))
    return "\n".join(parts)


def _operation(document: dict[str, Any], name: str, operation: dict[str, Any]) -> str:
    parts = [f"<h2><code>{_text(name)}</code></h2><p>{_text(operation.get('description', ''))}</p>"]
    content = operation.get("requestBody", {}).get("content", {})
    for kind in content.values():
        schema = _resolved(document, kind["schema"])
        required = schema.get("required", [])
        rows = [
            (field, _kind(document, about) + (", required" if field in required else ""), about)
            for field, about in schema.get("properties", {}).items()
        ]
        listed = [(f, kind, about.get("description", "")) for f, kind, about in rows]
        parts.append(f"<details><summary>{len(rows)} fields</summary>{_table(listed)}</details>")
    answers = [
        (status, ", ".join(answer.get("content", {})), answer.get("description", ""))
        for status, answer in operation["responses"].items()
    ]
    return "\n".join([*parts, _table(answers)])


def _table(rows: list[tuple[str, str, str]]) -> str:
    lines = "".join(
        f"<tr><th><code>{_text(one)}</code><td>{_text(two)}<td>{_text(three)}"
        for one, two, three in rows
    )
    return f"<table>{lines}</table>"


def _kind(document: dict[str, Any], schema: dict[str, Any]) -> str:
    """Name a type in a word or two."""
    schema = _resolved(document, schema)
    if "anyOf" in schema:
        kinds = [_kind(document, part) for part in schema["anyOf"]]
        return " or ".join(kind for kind in kinds if kind != "null")
    if "enum" in schema:
        return ", ".join(json.dumps(value) for value in schema["enum"])
    if "const" in schema:
        return json.dumps(schema["const"])
    if schema.get("type") == "array":
        return f"list of {_kind(document, schema.get('items', {}))}"
    return str(schema.get("type", "anything"))


def _resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def _text(value: Any) -> str:
    return html.escape(str(value))
