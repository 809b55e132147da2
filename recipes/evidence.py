"""Runs many methods on many tasks on one machine, in processes side by side, until a time is up.

    python recipes/evidence.py --data-dir data -o out --jobs 12 --seconds 480
    python recipes/evidence.py --data-dir data -o out/smoke --only chat-64 -n 4
    python recipes/evidence.py --pack -o out          # one file per task: texts, numbers, settings

Each method of each run has a folder of its own, what matters most comes first, and a process takes
the next that nobody has taken. A method that fails leaves its traceback in `logs/` and costs no
other's time; what the time does not suffice for is left out, and goes on where the same command is
given again. Packed runs hold what `bestk report` reads.
"""

from __future__ import annotations

import argparse
import functools
import io
import json
import lzma
import os
import re
import subprocess
import sys
import tarfile
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_OTHERS = ("quoref", "drop", "xsum", "recipes/queries.py", "recipes/regexes.py")
PATIENCE = 20.0  # seconds that a process is given to stop by itself

# Six settings of every family, ours too; what was tuned on is what was held out of nothing else.
# Beams are as wide as spends, on average, what the others do: so wide by task.
WIDTHS = {"commongen": (14, 17), "squad": (13, 20), "scitldr": (11, 17)}  # beams, groups


def families(task: str) -> dict[str, list[str]]:
    """List the settings that are tried of each family of methods, for a task."""
    groups = WIDTHS[task][1]
    ours = ("", ",novelty=0.5", ",novelty=1.5", ",novelty=2", ",min_prob=0.1", ",top_p=0.7")
    swor = [f"min_p={p}" for p in (0.05, 0.1, 0.2)] + [f"temperature={t}" for t in (0.5, 0.7)]
    return {
        "ours": [f"BKS_diverse:end_prob=1{one}" for one in ours],
        "min-p distinct": [f"Minp{p}:walk=distinct" for p in (0.02, 0.05, 0.1, 0.15, 0.2, 0.3)],
        "nucleus": [f"Ncls{p}:walk=shared" for p in (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)],
        "temperature distinct": [f"Temp{t}:walk=distinct" for t in (0.3, 0.4, 0.5, 0.6, 0.7, 1.0)],
        "diverse beam": [
            f"DBS+:beam_size={groups},diversity_penalty={p},num_groups={groups}"
            for p in (0.2, 0.4, 0.6, 0.8, 1.2, 1.6)
        ],
        "leaves": [
            *(f"Minp{p}:walk=leaves" for p in (0.02, 0.05, 0.1, 0.2)),
            *(f"Ncls{p}:walk=leaves" for p in (0.7, 0.9)),
        ],
        "arithmetic": [
            *(f"Minp{p}:walk=arithmetic" for p in (0.05, 0.1, 0.2)),
            *(f"Ncls{p}:walk=arithmetic" for p in (0.5, 0.7, 0.9)),
        ],
        "best-k last": [f"BKS_last:decay_weight={w}" for w in (0, 0.01, 0.05, 0.1, 0.2, 0.5)],
        "stochastic beam": [f"SWOR:beam_size=16,{one}" for one in (*swor, "top_p=0.7")],
    }


LEAST_DISTINCT = 50.0  # D that the ten of a setting can have, at `diversity` 0.75
DRAWN = ("min-p distinct", "nucleus", "temperature distinct", "arithmetic", "stochastic beam")
RULE = "end_prob=0.01"
CHAT = [
    "BKS_diverse",
    *(
        f"{name}{',' if ':' in name else ':'}{RULE}"
        for name in (
            "Minp0.1:walk=distinct",
            "Ncls0.8:walk=shared",
            "Minp0.05:walk=distinct",
            "Temp0.7:walk=distinct",
            "Ncls0.9:walk=shared",
            "Ncls0.5:walk=shared",
            "Minp0.1:walk=leaves",
            "DBS+:diversity_penalty=0.8",
            "BS",
            "BKS_mean",
        )
    ),
]
# A line ends the text.
LINES = [
    f"{name}{',' if ':' in name else ':'}stop_ids=198"
    for name in (
        "BKS_diverse:end_prob=1,k=25",
        "Minp0.1:walk=distinct",
        "Temp0.7:walk=distinct",
        "BS",
        "Ncls0.9:walk=shared",
        "Minp0.1:walk=leaves",
        "Temp1:walk=distinct",
        "BKS_mean:k=25",
    )
]
OTHERS = [
    "BKS_diverse:end_prob=1",
    "Minp0.1:walk=distinct",
    "Ncls0.5:walk=shared",
    "Minp0.1:walk=leaves",
    "DBS+:beam_size=20,diversity_penalty=0.8,num_groups=20",
    "BS:beam_size=13",
    "BKS_last:decay_weight=0.05",
]


@dataclass(frozen=True, kw_only=True)
class Run:
    """Examples of one task, and the methods that go over them."""

    task: str
    model: str
    num_examples: int
    methods: Sequence[str] = ()
    tuned: str | None = None  # the task whose tuning names the methods
    seeds: Sequence[int] = (0,)  # of those that draw
    split: str | None = None
    max_new_tokens: int | None = None
    beam_size: int = 10
    batch_size: int = 64
    style: str = "auto"

    @property
    def packed_as(self) -> str:
        """Name the file that the run is packed into."""
        return "others" if self.task in _OTHERS else Path(self.task).stem


_CHAT: dict[str, Any] = {"task": "recipes/chat.py", "model": "smollm2", "num_examples": 40}
_COMMONGEN: dict[str, Any] = {"task": "commongen", "model": "smollm2-commongen", "batch_size": 100}
_SQUAD: dict[str, Any] = {"task": "recipes/squad_held_out.py", "model": "smollm2-question"}
_SCITLDR: dict[str, Any] = {"task": "scitldr", "model": "smollm2-tldr"}
_QUESTIONS: dict[str, Any] = {"model": "smollm2-question", "num_examples": 200}
_LINES: dict[str, Any] = {
    "model": "smollm2",
    "style": "plain",
    "num_examples": 60,
    "beam_size": 100,
    "batch_size": 12,
    "methods": LINES,
}


def _tuning(task: str) -> list[str]:
    return [name for names in families(task).values() for name in names]


# Runs in the order of importance; those of a held-out part take what was best in tuning.
RUNS: dict[str, Run] = {
    "commongen": Run(
        **_COMMONGEN, split="dev", num_examples=300, methods=["BKS_diverse:end_prob=1"]
    ),
    "commongen-tuning": Run(
        **_COMMONGEN, split="test", num_examples=60, methods=_tuning("commongen")
    ),
    "squad-tuning": Run(**_SQUAD, split="validation", num_examples=60, methods=_tuning("squad")),
    "scitldr-tuning": Run(**_SCITLDR, split="dev", num_examples=40, methods=_tuning("scitldr")),
    "chat-64": Run(**_CHAT, max_new_tokens=64, methods=CHAT),
    "commongen-tuned": Run(**_COMMONGEN, split="dev", num_examples=300, tuned="commongen"),
    "squad-tuned": Run(**_SQUAD, num_examples=200, tuned="squad"),
    "scitldr-tuned": Run(**_SCITLDR, split="test", num_examples=200, tuned="scitldr"),
    "queries": Run(task="recipes/queries.py", **_LINES),
    "regexes": Run(task="recipes/regexes.py", **_LINES),
    "quoref": Run(task="quoref", **_QUESTIONS, methods=OTHERS),
    "drop": Run(task="drop", **_QUESTIONS, methods=OTHERS),
    "chat-128": Run(**_CHAT, max_new_tokens=128, methods=CHAT),
    "xsum": Run(
        task="xsum", model="smollm2", style="chat", num_examples=200, batch_size=50, methods=OTHERS
    ),
    "chat-32": Run(**_CHAT, max_new_tokens=32, methods=CHAT),
    "commongen-seeds": Run(
        **_COMMONGEN, split="dev", num_examples=300, tuned="commongen", seeds=(1, 2)
    ),
    "squad-seeds": Run(**_SQUAD, num_examples=200, tuned="squad", seeds=(1, 2)),
    "scitldr-seeds": Run(**_SCITLDR, split="test", num_examples=200, tuned="scitldr", seeds=(1, 2)),
    "chat-256": Run(**_CHAT, max_new_tokens=256, batch_size=10, methods=CHAT),
    "multi30k": Run(
        task="multi30k-en-de", model="multi30k-en-de", num_examples=300, methods=OTHERS
    ),
    "expressions": Run(task="recipes/expressions.py", **_LINES),
}

Job = tuple[str, str]  # run, method


def main() -> None:
    """Run, or pack, what the command line names."""
    parser = argparse.ArgumentParser(description="Run the evaluations that methods are judged by.")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--only", nargs="*", default=list(RUNS), help="runs, all unless given")
    parser.add_argument("--methods", help="those whose names this regular expression finds")
    parser.add_argument("-n", "--num-examples", type=int, help="at most so many of each run")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after these")
    parser.add_argument("--pack", action="store_true", help="put into one file per run instead")
    parser.add_argument("--worker", type=float, help=argparse.SUPPRESS)  # when to stop
    options = parser.parse_args()
    if unknown := [name for name in options.only if name not in RUNS]:
        parser.error(f"unknown runs {', '.join(unknown)}: known are {', '.join(RUNS)}")
    if options.pack:
        pack(options.output)
    elif options.worker is None:
        supervise(options)
    else:
        work(options)


def jobs(only: Sequence[str], pattern: str | None, folder: Path) -> list[Job]:
    """List what is to be done, in order of importance."""
    return [
        (name, method)
        for name in RUNS
        if name in only
        for method in methods_of(name, folder)
        if pattern is None or re.search(pattern, method)
    ]


def methods_of(name: str, folder: Path) -> list[str]:
    """List the methods of a run; a run of what was tuned has the best of each family."""
    run = RUNS[name]
    if run.tuned is None:
        return list(run.methods)
    every = families(run.tuned)
    scores = _scores(folder, run.tuned)
    best = {
        family: _best({name: scores[name] for name in names if name in scores})
        for family, names in every.items()
        if any(one in scores for one in names)
    }
    fixed = [f"BS:beam_size={WIDTHS[run.tuned][0]}", "Nsig1:walk=shared"]
    drawn = [
        f"{best[family]},seed={seed}" for seed in run.seeds for family in DRAWN if family in best
    ]
    first = best.get("min-p distinct", "Minp0.1:walk=distinct").replace("distinct", "shared")
    drawn += [f"{first},seed={seed}" for seed in run.seeds]
    if 0 not in run.seeds:
        return drawn
    own = [best[family] for family in every if family in best and family not in DRAWN]
    return list(dict.fromkeys([*own, *drawn, *fixed]))


def _best(scores: dict[str, tuple[float, float]]) -> str:
    """Name the best of the settings whose ten can differ enough; else the most distinct one."""
    fair = [name for name, (_, distinct) in scores.items() if distinct >= LEAST_DISTINCT]
    return max(fair or scores, key=lambda name: scores[name][0 if fair else 1])


def _scores(folder: Path, task: str) -> dict[str, tuple[float, float]]:
    """Read how good the methods of a tuning run were, and how different their ten can be."""
    run = f"{task}-tuning"
    found = {}
    for name in RUNS[run].methods:
        path = folder / "runs" / run / slug((run, name)) / "score.json"
        if path.exists():
            told = json.loads(path.read_text())
            found[name] = float(told["score"]), float(told["D"])
    return found


def score(folder: Path, examples: Sequence[Any]) -> tuple[float, float]:
    """Judge a method by ten texts of every example, at two choices of `diversity`.

    The mean ROUGE of ten (one that is missing has 0) and that of the best of them, their mean; and
    the highest D. A score alone would favour texts that are too alike to be compared.
    """
    import numpy as np
    from rouge_score import rouge_scorer, tokenizers

    from bestk.rerank.ngrams import distinctness
    from bestk.rerank.select import diverse
    from bestk_eval.store import read_lines

    stemmer = tokenizers.DefaultTokenizer(use_stemmer=True)
    cached = argparse.Namespace(tokenize=functools.cache(stemmer.tokenize))
    metric = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"], tokenizer=cached)
    by_id = {example.id: example for example in examples}
    curve = []
    for _, record in read_lines(folder / "results.jsonl"):
        example, texts = by_id[record["example"]], record["texts"]
        known: dict[str, float] = {}
        points = []
        for diversity in (0.25, 0.75):
            ten = [texts[n] for n in diverse(texts, record["log_probs"], 10, diversity)]
            for text in ten:
                if text not in known:
                    best = metric.score_multi(example.references, text)
                    known[text] = 100 * sum(one.fmeasure for one in best.values()) / 3
            values = [known[text] for text in ten] or [0.0]
            distinct = 100 * sum(distinctness(ten)) / 3
            points.append((distinct, sum(values) / 10, max(values)))
        curve.append(points)
    means = np.array(curve).mean(axis=0)
    means = means[np.argsort(means[:, 0], kind="stable")]
    both = means[:, 1:].mean(axis=1)
    at = [np.interp(distinct, means[:, 0], both) for distinct in (46, 50, 54)]
    return float(np.mean(at)), float(means[-1, 0])


def supervise(options: argparse.Namespace) -> None:
    """Keep so many processes at work until all is done or the time is up."""
    ends = time.time() + options.seconds
    for claim in (options.output / "claims").glob("*"):
        claim.unlink()  # of a call that has ended
    command = [sys.executable, *sys.argv, "--worker", str(ends)]
    logs = options.output / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    running: dict[int, subprocess.Popen[bytes]] = {}
    tries = dict.fromkeys(range(options.jobs), 3)
    while any(tries.values()) and time.time() < ends + PATIENCE:
        for number in tries:
            process = running.get(number)
            if process is not None and process.poll() is None:
                continue
            if tries[number] == 0 or (process is not None and process.returncode == 0):
                tries[number] = 0
                continue
            tries[number] -= 1
            with (logs / f"worker-{number}.txt").open("ab") as log:
                running[number] = subprocess.Popen(command, stdout=log, stderr=log)
        time.sleep(0.5)
    for process in running.values():
        if process.poll() is None:
            process.kill()
    print(*(f"{name}: {told}" for name, told in standing(options).items()), sep="\n")


def standing(options: argparse.Namespace) -> dict[str, str]:
    """Tell how many methods of each run are done, and which have failed."""
    told = {}
    for name in options.only:
        listed = jobs([name], options.methods, options.output)
        done = sum((options.output / "done" / slug(job)).exists() for job in listed)
        failed = [job[1] for job in listed if (options.output / "logs" / slug(job)).exists()]
        told[name] = f"{done} of {len(listed)}" + (f", failed: {failed}" if failed else "")
    return told


def work(options: argparse.Namespace) -> None:
    """Do what nobody else does, until nothing is left or the time is up."""
    import bestk

    load = functools.cache(bestk.load)
    for folder in ("claims", "done", "logs"):
        (options.output / folder).mkdir(parents=True, exist_ok=True)
    for job in jobs(options.only, options.methods, options.output):
        if time.time() > options.worker:
            return
        if (options.output / "done" / slug(job)).exists():
            continue
        if not _claims(options.output / "claims" / slug(job)):
            continue
        started = time.time()
        try:
            is_done = run(job, load, options)
        except Exception:
            (options.output / "logs" / slug(job)).write_text(traceback.format_exc())
            print(f"{slug(job)}: failed", flush=True)
            continue
        print(f"{slug(job)}: {time.time() - started:.1f} s", flush=True)
        if is_done:
            (options.output / "done" / slug(job)).touch()


def run(job: Job, load: Any, options: argparse.Namespace) -> bool:
    """Run one method over the examples; return whether it went through all of them."""
    from bestk_eval.runner import Settings, evaluate

    name, method = job
    one = RUNS[name]
    settings = Settings(
        task=one.task,
        methods=(method,),
        split=one.split,
        num_examples=min(one.num_examples, options.num_examples or one.num_examples),
        beam_size=one.beam_size,
        max_new_tokens=one.max_new_tokens,
        style=one.style,
        batch_size=one.batch_size,
        data_dir=options.data_dir,
    )
    lm = load(one.model, dtype="float32")  # as the runs of a CPU are
    is_done = False
    for step in evaluate(lm, settings, options.output / "runs" / name / slug(job)):
        is_done = step.done == step.total
        if time.time() > options.worker:
            break
    if is_done and name.endswith("-tuning"):
        _note_score(options.output / "runs" / name / slug(job), settings)
    return is_done


def _note_score(folder: Path, settings: Any) -> None:
    from bestk_eval.tasks import task_of
    from bestk_eval.tasks.reading import choose, read_examples

    every = read_examples(task_of(settings.task), settings.data_dir, settings.split)
    examples = choose(every, settings.num_examples, settings.seed)
    good, distinct = score(folder, examples)
    told = {"method": settings.methods[0], "score": good, "D": distinct}
    (folder / "score.json").write_text(json.dumps(told))


def slug(job: Job) -> str:
    """Name a job as a file.

    >>> slug(("squad", "Minp0.1:walk=distinct,seed=1"))
    'squad.Minp0.1_walk-distinct_seed-1'
    """
    run_name, method = job
    return f"{run_name}.{re.sub('[:,]', '_', method).replace('=', '-')}"


def _claims(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def pack(folder: Path) -> None:
    """Put the runs of every model, and the logs, into one file each."""
    (folder / "packed").mkdir(exist_ok=True)
    groups: dict[str, list[Path]] = {}
    for path in sorted((folder / "runs").iterdir()):
        groups.setdefault(RUNS[path.name].packed_as, []).append(path)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: _pack(folder / "packed", name, groups[name]), groups))
    texts = [path for path in (folder / "logs").iterdir() if path.stat().st_size]
    with tarfile.open(folder / "packed" / "logs.tar.xz", "w:xz") as out:
        for path in texts:
            out.add(path, path.name)


def _pack(packed: Path, name: str, runs: Sequence[Path]) -> None:
    """Write the finished methods of some runs, those of one run together, in a tar.xz."""
    with (
        lzma.open(packed / f"{name}.tar.xz", "wb", preset=4) as whole,
        tarfile.open(fileobj=whole, mode="w|") as out,
    ):
        for run in runs:
            finished = list(_finished(run))
            for file, data in _joined(run, finished).items() if finished else ():
                told = tarfile.TarInfo(f"{run.name}/{file}")
                told.size = len(data)
                out.addfile(told, io.BytesIO(data))


def _joined(run: Path, finished: Sequence[tuple[dict[str, Any], Path]]) -> dict[str, bytes]:
    """Return the files of a run that has these methods."""
    settings = finished[0][0] | {"methods": [one["methods"][0] for one, _ in finished]}
    files = {
        "settings.json": json.dumps(settings, indent=2, ensure_ascii=False).encode(),
        "examples.jsonl": (finished[0][1] / "examples.jsonl").read_bytes(),
    }
    for name in ("results.jsonl", "times.jsonl"):
        files[name] = b"".join((place / name).read_bytes() for _, place in finished)
    scores = [json.loads(path.read_text()) for path in sorted(run.glob("*/score.json"))]
    if scores:
        told = {
            one["method"]: {"score": round(one["score"], 2), "D": round(one["D"], 1)}
            for one in scores
        }
        files["tuning.json"] = json.dumps(told, indent=1).encode()
    return files


def _finished(run: Path) -> Iterator[tuple[dict[str, Any], Path]]:
    """Yield the settings and folders of methods, in their order; those cut off come last."""
    cut = []
    for method in methods_of(run.name, run.parent.parent):
        place = run / slug((run.name, method))
        if not (place / "results.jsonl").exists():
            continue
        settings = json.loads((place / "settings.json").read_bytes())
        lines = (place / "results.jsonl").read_bytes().count(b"\n")
        if lines == settings["examples"]:
            yield settings, place
        elif lines:
            cut.append((settings, place))
    yield from cut


if __name__ == "__main__":
    main()
