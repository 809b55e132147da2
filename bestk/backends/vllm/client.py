"""How prefixes reach a vLLM engine and answers come back: one driver for each kind of engine.

Searches that run side by side, in lanes or in threads, share the engine's steps: one driver serves
all that wrap the same engine. Knows vLLM's requests and outputs, nothing of search.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from bestk.backends.prefix import TopLogprobs
from bestk.errors import ModelError

# The version whose engine core is spoken to without vLLM's front end.
KNOWN_VERSION = "0.32."


def driver_of(engine: Any) -> StepDriver | AsyncDriver:
    """Return the driver of an engine, the same one every time."""
    with _MAKING:
        if engine not in _DRIVERS:
            _DRIVERS[engine] = _new_driver(engine)
        return _DRIVERS[engine]


_MAKING = threading.Lock()
_DRIVERS: weakref.WeakKeyDictionary[Any, StepDriver | AsyncDriver] = weakref.WeakKeyDictionary()


def _new_driver(engine: Any) -> StepDriver | AsyncDriver:
    import vllm

    if not hasattr(engine, "llm_engine"):
        return AsyncDriver(engine)
    is_known = vllm.__version__.startswith(KNOWN_VERSION)
    return (CoreDriver if is_known else StepDriver)(engine.llm_engine)


class StepDriver:
    """Steps the engine of a `vllm.LLM` until all answers are there.

    A thread that waits for answers steps the engine for all: what others have asked meanwhile is in
    the same batch. No thread steps while another one adds requests. What fails is answered with an
    error, which is raised in the thread that asked.
    """

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.lock = threading.Lock()
        self.waiting: set[str] = set()
        self.answers: dict[str, TopLogprobs | ModelError] = {}
        self.numbers = itertools.count()

    def ask(
        self, prefixes: Sequence[list[int]], num_tokens: int, lora_request: Any
    ) -> list[TopLogprobs]:
        """Add a request for every prefix and step until all are answered."""
        ids = [f"bestk-{next(self.numbers)}" for _ in prefixes]
        try:
            with self.lock:
                self.check_idle()
                self.waiting.update(ids)
                self.add(ids, prefixes, num_tokens, lora_request)
            missing = set(ids)
            while missing:
                with self.lock:
                    missing -= self.answers.keys()
                    if missing:
                        found = dict(self.step())
                        self.answers.update((n, found[n]) for n in self.waiting & found.keys())
            return [_sound(self.answers[name]) for name in ids]
        finally:
            self.drop(ids)

    def check_idle(self) -> None:
        """Refuse to step an engine that somebody else is using: their outputs would be lost."""
        if not self.waiting and self.engine.has_unfinished_requests():
            raise ModelError(
                "the engine has other requests under way: let them finish, or use an AsyncLLM, "
                "which serves many callers"
            )

    def drop(self, ids: list[str]) -> None:
        """Forget requests; those that are unanswered, after an interrupt, leave the engine too."""
        with self.lock:
            if left := [name for name in ids if name not in self.answers]:
                self.abort(left)
            self.waiting.difference_update(ids)
            for name in ids:
                self.answers.pop(name, None)

    def add(
        self, ids: list[str], prefixes: Sequence[list[int]], num_tokens: int, lora_request: Any
    ) -> None:
        """Hand requests to the engine."""
        from vllm.inputs.engine import tokens_input

        params = sampling_params(num_tokens)
        for name, prefix in zip(ids, prefixes, strict=True):
            self.engine.add_request(
                name, tokens_input(prefix), params.clone(), lora_request=lora_request
            )

    def step(self) -> Iterator[tuple[str, TopLogprobs | ModelError]]:
        """Run the engine once, and return the answers that it gave."""
        for output in self.engine.step():
            try:
                yield output.request_id, listed(output)
            except ModelError as error:
                yield output.request_id, error

    def abort(self, ids: list[str]) -> None:
        """Take requests back."""
        self.engine.abort_request(ids)


class CoreDriver(StepDriver):
    """Speaks to the engine core itself, and so spares what vLLM does for texts and streams.

    Answers come as arrays, so that even whole vocabularies cost little.
    """

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self.core = engine.engine_core

    def add(
        self, ids: list[str], prefixes: Sequence[list[int]], num_tokens: int, lora_request: Any
    ) -> None:
        """Hand requests to the engine core."""
        from vllm.v1.engine import EngineCoreRequest

        params, now = sampling_params(num_tokens), time.time()
        for name, prefix in zip(ids, prefixes, strict=True):
            self.core.add_request(
                EngineCoreRequest(
                    request_id=name,
                    external_req_id=name,
                    prompt_token_ids=prefix,
                    mm_features=None,
                    sampling_params=params,
                    pooling_params=None,
                    arrival_time=now,
                    lora_request=lora_request,
                    cache_salt=None,
                    data_parallel_rank=None,
                )
            )

    def step(self) -> Iterator[tuple[str, TopLogprobs | ModelError]]:
        """Run the engine once, and return the answers that it gave."""
        for output in self.core.get_output().outputs:
            if output.new_logprobs is None:
                told = f"vLLM gave up on a request: {output.finish_reason}"
                yield output.request_id, ModelError(told)
            else:
                tokens, log_probs = output.new_logprobs[:2]
                yield output.request_id, TopLogprobs(tokens[0][1:], log_probs[0][1:])

    def abort(self, ids: list[str]) -> None:
        """Take requests back."""
        self.core.abort_requests(ids)


def _sound(answer: TopLogprobs | ModelError) -> TopLogprobs:
    if isinstance(answer, ModelError):
        raise answer
    return answer


class AsyncDriver:
    """Asks an `AsyncLLM` on its event loop, from any other thread.

    The loop is the one that the engine uses already, or that runs where the driver is made; else
    one of our own, in a thread of its own.
    """

    def __init__(self, engine: Any) -> None:
        self.engine = weakref.ref(engine)  # drivers are kept as long as their engines
        self.numbers = itertools.count()
        self.loop = _loop_of(engine)

    def ask(
        self, prefixes: Sequence[list[int]], num_tokens: int, lora_request: Any
    ) -> list[TopLogprobs]:
        """Ask for all prefixes at once, and wait."""
        self.check_thread()
        asked = self.all_of(prefixes, num_tokens, lora_request)
        future = asyncio.run_coroutine_threadsafe(asked, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def check_thread(self) -> None:
        """Refuse to wait for a loop in its own thread, which would be for ever."""
        try:
            is_own = asyncio.get_running_loop() is self.loop
        except RuntimeError:
            is_own = False
        if is_own:
            raise ModelError(
                "a search would block the event loop that its engine runs on: call it as "
                "`await asyncio.to_thread(bestk.search, lm, prompts)`"
            )
        if self.loop.is_closed():
            raise ModelError("the engine's event loop is closed: make the engine anew")

    async def all_of(
        self, prefixes: Sequence[list[int]], num_tokens: int, lora_request: Any
    ) -> list[TopLogprobs]:
        """Ask for every prefix in a task of its own; if one fails, none goes on."""
        params = sampling_params(num_tokens)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self.one_of(prefix, params, lora_request))
                    for prefix in prefixes
                ]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def one_of(self, prefix: list[int], params: Any, lora_request: Any) -> TopLogprobs:
        """Ask for one prefix."""
        from vllm.inputs.engine import tokens_input

        engine, last = self.engine(), None
        assert engine is not None, "a backend holds its engine"
        async for output in engine.generate(
            tokens_input(prefix),
            params.clone(),
            f"bestk-{next(self.numbers)}",
            lora_request=lora_request,
        ):
            last = output
        return listed(last)


def _loop_of(engine: Any) -> asyncio.AbstractEventLoop:
    if engine.output_handler is not None:
        found: asyncio.AbstractEventLoop = engine.output_handler.get_loop()
        return found
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        loop = asyncio.new_event_loop()
    threading.Thread(target=_run, args=(loop,), name="bestk-vllm", daemon=True).start()
    weakref.finalize(engine, loop.call_soon_threadsafe, loop.stop)
    return loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until its engine is gone."""
    try:
        loop.run_forever()
    finally:
        loop.close()


def sampling_params(num_tokens: int) -> Any:
    """Ask for one token, and the likeliest ones in its place."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=1,
        temperature=0.0,
        logprobs=num_tokens,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def listed(output: Any) -> TopLogprobs:
    """Read the tokens that an output lists; the first is the sampled one, which comes again."""
    found = output.outputs[0].logprobs if output is not None else None
    if not found:
        raise ModelError("vLLM gave up on a request")
    return TopLogprobs(found.token_ids[1:], found.logprobs[1:])
