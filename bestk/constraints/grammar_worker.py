"""Compiles grammars in a process of its own, each in a fork that may be killed; knows no bestk.

A line in is {"number": N, "tokens": …}, a tokenizer as xgrammar writes it, or a grammar to compile
for one of them. That gives a line out, {"size": …} and so many bytes, or {"error": …}; `null` says
that it took more than it may, or broke the compiler.
"""

import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

# A text so long is tried with every grammar: an ambiguous one may compile fast and read slowly.
_TRIED = 512
_SOON = 0.1  # of the time that a grammar may take
_LONGEST = 16 << 20  # bytes of a compiled grammar


def main() -> None:
    """Answer until standard input ends."""
    import xgrammar

    known = {}
    out = sys.stdout.buffer
    for line in sys.stdin:
        job = json.loads(line)
        if "tokens" in job:
            known[job["number"]] = xgrammar.TokenizerInfo.deserialize_json(job["tokens"])
            continue
        answer = _apart(job, known[job["number"]])
        is_good = answer[:1] == b"+"
        told = {"size": len(answer) - 1} if is_good else {"error": answer[1:].decode() or None}
        out.write(json.dumps(told).encode() + b"\n" + (answer[1:] if is_good else b""))
        out.flush()


def _apart(job: dict[str, Any], tokens: Any) -> bytes:
    """Compile in a fork: "+" and the grammar, "-" and the reason, nothing where it was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            _limit(job)
            with os.fdopen(writing, "wb") as out:
                out.write(_compiled(job, tokens))
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writing)
    answer, is_whole = b"", False
    # Most take a moment; one that takes longer gets what time searches leave.
    if not select.select([reading], [], [], job["seconds"] * _SOON)[0]:
        os.setpriority(os.PRIO_PROCESS, child, 19)
    end = time.monotonic() + 2 * job["seconds"]
    while select.select([reading], [], [], max(0.0, end - time.monotonic()))[0]:
        block = os.read(reading, 1 << 20)
        answer += block
        is_whole = not block
        if is_whole or len(answer) > _LONGEST:
            break
    os.close(reading)
    if not is_whole:
        os.kill(child, signal.SIGKILL)
    return answer if os.waitpid(child, 0)[1] == 0 else b""


def _limit(job: dict[str, Any]) -> None:
    """Let this process have so much time and memory, and no files."""
    import resource

    seconds = max(1, round(job["seconds"]))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    pages = Path("/proc/self/statm")
    if pages.exists():
        most = int(pages.read_text().split()[0]) * resource.getpagesize() + job["memory"]
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _compiled(job: dict[str, Any], tokens: Any) -> bytes:
    import xgrammar

    try:
        compiler = xgrammar.GrammarCompiler(tokens, max_threads=1, cache_enabled=False)
        compiled = compiler.compile_grammar(
            grammar_of(job["name"], job["text"], job["after_space"])
        )
        _try(compiled)
        return b"+" + compiled.serialize_json().encode()
    except (RuntimeError, ValueError) as error:
        if "bad_alloc" in str(error):
            raise
        return b"-" + (str(error) or type(error).__name__).encode()


def _try(compiled: Any) -> None:
    """Read a text of likely length, whichever tokens may come."""
    import random

    import xgrammar

    matcher, source = xgrammar.GrammarMatcher(compiled), random.Random(0)
    size = compiled.tokenizer_info.vocab_size
    mask = xgrammar.allocate_token_bitmask(1, size)
    for _ in range(_TRIED):
        matcher.fill_next_token_bitmask(mask)
        words = mask[0].tolist()
        some = [number for number, word in enumerate(words) if word]
        if not some:
            return
        number = source.choice(some)
        bit = source.choice([bit for bit in range(32) if words[number] >> bit & 1])
        if not matcher.accept_token(number * 32 + bit) or matcher.is_terminated():
            return


def grammar_of(name: str, text: str, after_space: bool) -> Any:
    """Make xgrammar's grammar of a regex, a JSON schema or an EBNF text."""
    from xgrammar import Grammar

    if name == "regex":
        grammar = Grammar.from_regex(text)
    elif name == "json_schema":
        grammar = _document(text)
    elif text.startswith("{"):  # no EBNF begins so
        grammar = Grammar.from_structural_tag(json.dumps(_exact(json.loads(text))))
    else:
        grammar = Grammar.from_ebnf(text)
    return Grammar.concat(Grammar.from_regex(" ?"), grammar) if after_space else grammar


def _document(schema: str) -> Any:
    """Make the grammar of JSON as json.dumps writes it: white space alone makes no other text."""
    from xgrammar import Grammar

    return Grammar.from_json_schema(schema, any_whitespace=False)


def _exact(tag: Any) -> Any:
    """Put the grammars of JSON into a structural tag in place of its schemas."""
    if isinstance(tag, list):
        return [_exact(one) for one in tag]
    if isinstance(tag, dict) and tag.get("type") == "json_schema" and "json_schema" in tag:
        document = _document(json.dumps(tag["json_schema"], ensure_ascii=False))
        return {"type": "grammar", "grammar": str(document)}
    return {key: _exact(one) for key, one in tag.items()} if isinstance(tag, dict) else tag


if __name__ == "__main__":
    main()
