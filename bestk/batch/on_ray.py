"""The windows of a job over a Ray cluster: actors hold the model, Ray Data feeds them.

One task on the machine that started the job reads the input and hands out windows as actors get
free; results come back in the order of the windows. Where a worker dies, Ray starts another and
gives it the dead one's windows. Knows Ray; what is done with a window is in `searching`.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from bestk.batch.sources import Offset, Source
from bestk.batch.window import JobConfig, WindowOutput, prepare, search_window
from bestk.errors import BestKError, MissingExtraError, ModelError, OptionError, first_line
from bestk.lm.language_model import LanguageModel

LOCAL = "local"
_COLUMN = "pickled"


class Loadable(Protocol):
    """A model that every worker can load."""

    def load(self) -> LanguageModel:
        """Load it."""
        ...


@dataclass(frozen=True, kw_only=True)
class RaySettings:
    """Where a job runs, and on how much of it."""

    address: str = LOCAL  # or auto, or host:port of a cluster that this machine belongs to
    workers: int | None = None  # as many as the cluster's GPUs, or else CPUs, allow
    gpus_per_worker: float | None = None  # 1 where the cluster has any
    cpus_per_worker: float = 1

    def __post_init__(self) -> None:
        if self.address.startswith("ray://"):
            raise OptionError(
                f"{self.address} is reached from outside: start the job on a machine of the "
                "cluster, with address auto"
            )
        if self.workers is not None and self.workers < 1:
            raise OptionError(f"workers must be at least 1, got {self.workers}")


class OnRay:
    """Searches on a cluster."""

    def __init__(self, settings: RaySettings, model: Any) -> None:
        self.ray = _ray()
        self.settings = settings
        self.model: Loadable = model

    def prepare(self, wanted: JobConfig, rows: Any, batch_size: int | None) -> int:
        """Ask a worker, since only there the model is loaded."""
        self._connect()
        ask = self.ray.remote(_prepare).options(**self._per_worker())
        answer = self.ray.get(ask.remote(self.model, wanted, rows, batch_size))
        if isinstance(answer, BestKError):
            raise answer
        return int(answer)

    def run(
        self,
        source: Source,
        start: Offset,
        stop: int | None,
        *,
        wanted: JobConfig,
        batch_size: int,
        window: int,
        with_columns: bool,
    ) -> Iterator[tuple[WindowOutput, Offset]]:
        """Search all rows from one place to another; yield windows in their order."""
        self._connect()
        data, count = self.ray.data, self._num_workers()
        with data.DataContext.current(self._context()):
            searched = data.read_datasource(
                _windows(source, start, stop, window),
                override_num_blocks=1,
                num_cpus=0,
                resources=self._this_machine(),
            ).map_batches(
                Worker,
                fn_constructor_args=(self.model, wanted, batch_size, with_columns),
                batch_size=1,
                # A job of few windows, or a cluster that grows, may have fewer than it could.
                compute=data.ActorPoolStrategy(min_size=1, max_size=count, initial_size=count),
                **self._per_worker(),
            )
            for row in searched.iter_rows():
                answer, end = pickle.loads(row[_COLUMN])
                if isinstance(answer, BestKError):
                    raise answer
                yield answer, end

    def _connect(self) -> None:
        if self.ray.is_initialized():
            return
        address = None if self.settings.address == LOCAL else self.settings.address
        here = {"include_dashboard": False} if address is None else {}
        try:
            self.ray.init(address or LOCAL, log_to_driver=False, logging_level="warning", **here)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise OptionError(
                f"no Ray cluster at {self.settings.address}: {first_line(error)}"
            ) from error

    def _context(self) -> Any:
        """Make every window a block of its own, in order, without Ray's progress bars."""
        context = self.ray.data.DataContext.get_current().copy()
        context.execution_options.preserve_order = True
        context.target_max_block_size = 1
        context.target_min_block_size = 0
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        return context

    def _per_worker(self) -> dict[str, float]:
        gpus = self.settings.gpus_per_worker
        if gpus is None:
            gpus = min(1, self._total("GPU"))
        return {"num_cpus": self.settings.cpus_per_worker, "num_gpus": gpus}

    def _num_workers(self) -> int:
        if self.settings.workers is not None:
            return self.settings.workers
        needs = self._per_worker()
        kind, each = ("GPU", needs["num_gpus"]) if needs["num_gpus"] else ("CPU", needs["num_cpus"])
        return max(1, int(self._total(kind) // each)) if each else 1

    def _total(self, kind: str) -> float:
        return float(self.ray.cluster_resources().get(kind, 0))

    def _this_machine(self) -> dict[str, float]:
        """Name a resource that only this machine has: the input need not be on any other."""
        this = self.ray.get_runtime_context().get_node_id()
        (node,) = (node for node in self.ray.nodes() if node["NodeID"] == this)
        return {f"node:{node['NodeManagerAddress']}": 0.001}


class Worker:
    """An actor: loads the model at its first window, and searches one window after another.

    Errors that end a job come back as answers: one that is raised in an actor loses its kind.
    """

    def __init__(
        self, model: Loadable, wanted: JobConfig, batch_size: int, with_columns: bool
    ) -> None:
        self._parts = wanted, batch_size, with_columns
        self._model = model
        self._lm: LanguageModel | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[bytes]]:
        """Search the windows of a batch."""
        answers = []
        for pickled in batch[_COLUMN]:
            rows, end = pickle.loads(pickled)
            try:
                answers.append(pickle.dumps((self._search(rows), end)))
            except BestKError as error:
                answers.append(pickle.dumps((_sendable(error), end)))
        return {_COLUMN: answers}

    def _search(self, rows: Any) -> WindowOutput:
        wanted, batch_size, with_columns = self._parts
        self._lm = lm = self._lm or self._model.load()
        return search_window(lm, wanted, batch_size, rows, with_columns)


def _prepare(model: Loadable, wanted: JobConfig, rows: Any, batch_size: int | None) -> Any:
    try:
        return prepare(model.load(), wanted, rows, batch_size)
    except BestKError as error:
        return _sendable(error)


def _sendable(error: BestKError) -> BestKError:
    """Leave behind what an error carries: results, and what it was caused by."""
    kind = OptionError if isinstance(error, OptionError) else ModelError
    return kind(str(error))


def _windows(source: Source, start: Offset, stop: int | None, size: int) -> Any:
    """Make the windows a source of Ray Data: one task that yields a block for each."""
    import pyarrow
    from ray.data.block import BlockMetadata
    from ray.data.datasource import Datasource, ReadTask

    def read() -> Iterator[Any]:
        for window in source.windows(start, stop, size):
            yield pyarrow.table({_COLUMN: [pickle.dumps((window.rows, window.end))]})

    class Windows(Datasource):  # type: ignore[misc]
        def estimate_inmemory_data_size(self) -> int | None:
            return None

        def get_read_tasks(self, parallelism: int, *args: Any, **kwargs: Any) -> list[Any]:
            unknown = BlockMetadata(
                num_rows=None, size_bytes=None, input_files=None, exec_stats=None
            )
            return [ReadTask(read, unknown)]

    return Windows()


def _ray() -> Any:
    try:
        import ray
        import ray.data
    except ImportError:
        raise MissingExtraError("Ray is not installed: pip install 'bestk[ray]'") from None
    return ray
