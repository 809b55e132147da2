"""The files of a job: what is done is on disk, and a job that was killed goes on from there.

    OUT                 the results, there when the job is done and not before
    OUT.errors.jsonl    rows that could not be searched, with line numbers and reasons, if any
    OUT.job/            settings.json   what the job depends on; other jobs do not mix with it
                        state.json      how far it has come, in rows and in bytes of the next two
                        results.jsonl   results so far, in the order of the rows
                        errors.jsonl    errors so far

A window of results is appended, then the state replaced: after a kill in between, the files are cut
back to what the state says. So nothing is lost, nothing comes twice, and a job takes up no more
memory, nor longer to resume, the longer it has run. Knows files, not models.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bestk import durable
from bestk.batch.sources import Offset
from bestk.batch.window import WindowOutput
from bestk.errors import OptionError, SchemaError

FORMAT = "bestk.batch"
FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class JobState:
    """How far a job has come."""

    line: int = 0  # rows read
    offset: int = 0
    num_rows: int = 0  # of them with results
    num_bad: int = 0
    results: int = 0  # bytes
    errors: int = 0
    stage: str = "searching"  # then writing, then done

    @property
    def place(self) -> Offset:
        """Return where to read on."""
        return Offset(self.line, self.offset)


class JobStore:
    """The files of one job; only one process may have them open."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.errors_output = output.with_name(output.name + ".errors.jsonl")
        folder = output.with_name(output.name + ".job")
        if not output.parent.is_dir():
            raise OptionError(f"{output.parent} is no folder: make it first")
        if output.exists() and not (folder / "settings.json").exists():
            raise OptionError(f"{output} is there already, and not from a job: give another name")
        self._held = durable.Folder(folder, "job")
        self.folder = folder
        self.results = folder / "results.jsonl"
        self.errors = folder / "errors.jsonl"
        self.state = JobState()

    def settings(self) -> dict[str, Any] | None:
        """Return what the job was begun with, None for a new one."""
        path = self.folder / "settings.json"
        return self._read(path) if path.exists() else None

    def begin(self, settings: dict[str, Any], start: Offset) -> None:
        """Write down what is to be done, or check that it is what was begun, and see how far."""
        told = {"format": FORMAT, "version": FORMAT_VERSION, **settings}
        known = self.settings()
        if known is None:
            self._fresh(start)
            # Last: where there are settings, there is a state.
            durable.replace(
                self.folder / "settings.json", json.dumps(told, indent=2, ensure_ascii=False)
            )
            return
        way_out = f"another output, or remove {self.folder}"
        durable.refuse_other(self.output, known, told, way_out)
        self.state = JobState(**self._read(self.folder / "state.json"))
        if self.state.stage == "done" and not self.output.exists():
            self._fresh(start)
        if self.state.stage == "searching":
            if self.output.exists():
                raise OptionError(f"{self.output} is there, and not from this job: move it away")
            self._cut_back()

    def commit(self, found: WindowOutput, end: Offset) -> None:
        """Add a window, on disk when this returns."""
        if found.results:
            durable.append(self.results, found.results)
        if found.errors:
            durable.append(self.errors, found.errors)
        self._put(
            replace(
                self.state,
                line=end.line,
                offset=end.offset,
                num_rows=self.state.num_rows + found.num_rows,
                num_bad=self.state.num_bad + found.num_bad,
                results=self.state.results + len(found.results),
                errors=self.state.errors + len(found.errors),
            )
        )

    def finish(self, assemble: Callable[[Path, Path], None] | None) -> None:
        """Put the output in its place; `assemble` makes it from the results, None moves them there.

        Every step can be done again after a kill in the middle of it.
        """
        self._put(replace(self.state, stage="writing"))
        if assemble is not None:
            scratch = self.folder / "output"
            with durable.removed_on_failure(scratch):
                assemble(self.results, scratch)
                durable.sync(scratch)
                os.replace(scratch, self.output)
        elif self.results.exists():  # else it was moved before a kill
            os.replace(self.results, self.output)
        if self.errors.exists() and self.state.errors:
            os.replace(self.errors, self.errors_output)
        self._put(replace(self.state, stage="done"))
        self.results.unlink(missing_ok=True)
        self.errors.unlink(missing_ok=True)

    def close(self) -> None:
        """Let others write; a job that was not begun leaves nothing behind."""
        # While it is still ours: another job could have begun in it a moment later.
        if not (self.folder / "settings.json").exists():
            shutil.rmtree(self.folder, ignore_errors=True)
        self._held.close()

    def _fresh(self, start: Offset) -> None:
        self.errors_output.unlink(missing_ok=True)
        for path in (self.results, self.errors):
            path.write_bytes(b"")
        self._put(JobState(line=start.line, offset=start.offset))

    def _cut_back(self) -> None:
        for path, size in ((self.results, self.state.results), (self.errors, self.state.errors)):
            found = path.stat().st_size if path.exists() else 0
            if found < size:
                raise SchemaError(
                    f"{path} was changed: it has {found} of {size} bytes. "
                    f"Remove {self.folder} to begin again"
                )
            durable.cut_bytes(path, size)

    def _put(self, state: JobState) -> None:
        durable.replace(self.folder / "state.json", json.dumps(asdict(state)))
        self.state = state

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SchemaError(
                f"{path} cannot be read ({error}): remove {self.folder} to begin again"
            ) from None
        if not isinstance(data, dict):
            raise SchemaError(f"{path} is not of a job: remove {self.folder} to begin again")
        return data
