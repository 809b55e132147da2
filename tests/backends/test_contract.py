"""What every backend promises the search. A new backend joins by one entry in `BACKENDS`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import pytest
import tiny
import tiny_vllm
import torch
from conftest import random_toy
from fake_servers import SHAPES, Fake, WordList, serving
from prompted_toy import PromptedToy
from torch import Tensor

import bestk
from bestk.backends.base import Backend, Session
from bestk.backends.children import top_children
from bestk.backends.prefix import PrefixSession
from bestk.backends.toy import ToyBackend, ToySession
from bestk.backends.transformers.decoder_only import DecoderOnlyBackend, TreeSession
from bestk.backends.transformers.recompute import RecomputeSession
from bestk.core.frontier import Nodes
from bestk.core.tree import Tree
from bestk.errors import OptionError
from bestk.nodes import BatchSpec, Children, NodeBatch

CAPACITY, DEPTH, WIDTH = 12, 5, 3
PROMPTS = [[3, 1, 4, 2, 5], [2], [5, 5, 1]]
Node = tuple[int, int] | None  # the parent's slot and a token; None leaves the place empty


@dataclass(frozen=True)
class Entry:
    """A backend under contract, and how exactly it repeats itself."""

    make: Callable[[], Backend | AbstractContextManager[Backend]]
    session: type
    tolerance: float = 1e-4


def _ngram() -> ToyBackend:
    rows = {(1,): [0.5, 0.25, 0.25, 0.0, 0.0, 0.0], (4, 2): [0.1, 0.2, 0.3, 0.2, 0.1, 0.1]}
    return ToyBackend.ngram(rows, [0.3, 0.2, 0.2, 0.1, 0.1, 0.1])


def _dense_toy() -> ToyBackend:
    """Give every token some probability: an engine does not list those that have none."""
    toy = random_toy(1, vocab_size=6)

    def distribution(prefix: tuple[int, ...]) -> list[float]:
        return [(p + 0.05) / 1.3 for p in toy.distribution(prefix)]

    return ToyBackend(distribution, vocab_size=6)


@contextmanager
def _served(shape: str) -> Iterator[Backend]:
    """A toy behind a server on loopback that answers in one of the shapes."""
    fake = Fake(random_toy(1, vocab_size=6))
    with serving(SHAPES[shape](fake)) as url:
        backend = bestk.load(url, tokenizer=WordList(6)).backend
        yield backend
        backend.close()


@contextmanager
def _vllm() -> Iterator[Backend]:
    folder = tiny_vllm.folder()
    options = {"skip_tokenizer_init": True, "kv_cache_memory_bytes": 2**25, "max_model_len": 64}
    backend = bestk.load(f"vllm:{folder}", enforce_eager=True, **options).backend
    yield backend
    tiny_vllm.end(backend)


BACKENDS = {
    "toy": Entry(lambda: random_toy(1, vocab_size=6), ToySession, tolerance=0),
    "ngram": Entry(_ngram, ToySession, tolerance=0),
    "http-vllm": Entry(lambda: _served("vllm"), PrefixSession, tolerance=0),
    "http-sglang": Entry(lambda: _served("sglang"), PrefixSession, tolerance=0),
    "http-llama.cpp": Entry(lambda: _served("llama.cpp"), PrefixSession, tolerance=0),
    "prompted": Entry(lambda: PromptedToy(_dense_toy()), PrefixSession, tolerance=0),
    "causal": Entry(lambda: DecoderOnlyBackend(tiny.model("llama")), TreeSession),
    "causal-gpt2": Entry(lambda: DecoderOnlyBackend(tiny.model("gpt2")), TreeSession),
    "vllm": Entry(_vllm, PrefixSession),
    "prefix": Entry(lambda: DecoderOnlyBackend(tiny.model("bloom")), RecomputeSession),
    "prefix-recurrent": Entry(lambda: DecoderOnlyBackend(tiny.model("mamba")), RecomputeSession),
}


PARAMS = [
    pytest.param(name, marks=tiny_vllm.marks() if name == "vllm" else ()) for name in BACKENDS
]


@pytest.fixture(params=PARAMS, scope="module")
def entry(request: pytest.FixtureRequest) -> Entry:
    return BACKENDS[request.param]


@pytest.fixture(scope="module")
def backend(entry: Entry) -> Iterator[Backend]:
    made = entry.make()
    with made if isinstance(made, AbstractContextManager) else nullcontext(made) as backend:
        yield backend


class Walk:
    """A session whose tree is grown by hand."""

    def __init__(
        self, backend: Backend, prompts: Sequence[Sequence[int]], num_children: int | None = None
    ) -> None:
        number = num_children or backend.vocab_size
        self.device, self.batch, self.number = backend.device, len(prompts), number
        self.is_normalised = backend.capabilities.normalised
        spec = BatchSpec(width=WIDTH, slots=CAPACITY, depth=DEPTH, num_children=number)
        self.session: Session = backend.start(prompts, spec)
        self.tree = Tree(self.batch, CAPACITY, DEPTH, number, self.device)
        self.root = self.read(dict(enumerate(prompts)))

    def read(self, prompts: Mapping[int, Sequence[int]], *, whole: bool = False) -> Children:
        """Begin searches anew, in the rows of their prompts."""
        nodes = self.tree.roots(torch.tensor(list(prompts), device=self.device))
        found = self.session.prefill(nodes, prompts, whole=whole)
        self.tree.count += nodes.is_valid.sum(dim=1)
        return self.listed(found)

    def listed(self, found: Tensor | Children) -> Children:
        """Return children, of logits where the session gives them."""
        if isinstance(found, Children):
            return found
        return top_children(found, self.number, is_normalised=self.is_normalised)

    def group(self, *rows: Sequence[Node]) -> NodeBatch:
        """Append nodes, one list of `WIDTH` places for every prompt."""
        places = [[(0, 0) if node is None else node for node in row] for row in rows]
        is_valid = torch.tensor([[node is not None for node in row] for row in rows])
        parent, token = torch.tensor(places).to(self.device).unbind(-1)
        zeros = torch.zeros(parent.shape, dtype=torch.float64, device=self.device)
        nodes = Nodes.of(
            is_open=is_valid.to(self.device),
            token=token,
            parent=parent,
            child=torch.zeros_like(parent),
            depth=self.tree.depth.gather(1, parent) + 1,
            step=torch.zeros_like(parent),
            score=zeros,
            log_prob=zeros,
            last_log_prob=zeros,
        )
        placed = self.tree.place(nodes)
        self.tree.append(placed, nodes, zeros, torch.zeros_like(self.tree.count))
        return placed

    def expand(self, *rows: Sequence[Node], whole: bool = False) -> Children:
        """Expand the same places for every prompt, or a list of places for each."""
        rows = rows if len(rows) == self.batch else rows * self.batch
        return self.listed(self.session.evaluate(self.group(*rows), whole=whole))


def dense(children: Children, vocab_size: int) -> Tensor:
    """Return log-probabilities by token id."""
    table = torch.full((*children.token.shape[:2], vocab_size), -torch.inf, dtype=torch.float64)
    return table.scatter(2, children.token.cpu(), children.log_prob.cpu().double())


def same(one: Tensor, other: Tensor, tolerance: float) -> bool:
    return torch.allclose(one.exp(), other.exp(), rtol=0, atol=tolerance) and torch.allclose(
        one, other, rtol=0, atol=max(tolerance * 10, 1e-12)
    )


def test_says_what_it_is(backend: Backend) -> None:
    assert isinstance(backend, Backend)
    assert backend.name
    assert backend.vocab_size >= 6
    assert all(0 <= token < backend.vocab_size for token in backend.eos_ids)
    most = backend.capabilities.max_length
    assert most is None or most > DEPTH
    assert isinstance(backend.device, torch.device)


def test_is_the_session_meant(entry: Entry, backend: Backend) -> None:
    walk = Walk(backend, PROMPTS)
    assert isinstance(walk.session, Session)
    assert isinstance(walk.session, entry.session), "another kind of session is under test"


def test_children_are_sorted_distinct_and_normalised(backend: Backend) -> None:
    walk = Walk(backend, PROMPTS)
    for children, places in ((walk.root, 1), (walk.expand([(0, 1), (0, 2), (0, 3)]), WIDTH)):
        assert children.token.shape == (3, places, backend.vocab_size)
        assert children.log_prob.shape == children.token.shape
        assert children.log_prob.is_floating_point()
        better, worse = children.log_prob[..., :-1], children.log_prob[..., 1:]
        assert (better >= worse).all(), "best first"
        ids = children.token.sort(dim=2).values
        assert (ids == torch.arange(backend.vocab_size)).all(), "every token exactly once"
        total = children.log_prob.double().exp().sum(dim=2)
        assert torch.allclose(total, torch.ones_like(total), atol=1e-5)
        assert (children.token.diff(dim=2)[better == worse] > 0).all(), "equal ones by lower id"


@pytest.mark.parametrize("number", [1, 2, 5])
def test_gives_as_many_children_as_asked(backend: Backend, number: int) -> None:
    whole, some = Walk(backend, PROMPTS), Walk(backend, PROMPTS, number)
    nodes: list[Node] = [(0, 1), (0, 2), (0, 3)]
    for all_of_them, best in (
        (whole.root, some.root),
        (whole.expand(nodes), some.expand(nodes)),
    ):
        assert best.token.shape[2] == number
        assert torch.equal(best.log_prob, all_of_them.log_prob[..., :number])
        assert torch.equal(best.token[..., 0], all_of_them.token[..., 0])


def test_a_node_is_its_prefix(entry: Entry, backend: Backend) -> None:
    walk = Walk(backend, PROMPTS)
    walk.expand([(0, 1), (0, 4), (0, 2)])  # slots 1 to 3
    walk.expand([(1, 5), (3, 3), (2, 2)])  # 4 to 6
    deep = dense(walk.expand([(4, 2), (1, 1), (5, 4)]), backend.vocab_size)
    for place, tokens in enumerate(([1, 5, 2], [1, 1], [2, 3, 4])):
        plain = Walk(backend, [[*prompt, *tokens] for prompt in PROMPTS])
        expected = dense(plain.root, backend.vocab_size)[:, 0]
        assert same(deep[:, place], expected, entry.tolerance), f"children of {tokens}"


def test_the_order_of_expansion_does_not_matter(entry: Entry, backend: Backend) -> None:
    broad, deep = Walk(backend, PROMPTS), Walk(backend, PROMPTS)
    broad.expand([(0, 1), (0, 2), (0, 3)])
    one = dense(broad.expand([(1, 4), (2, 5), (3, 1)]), backend.vocab_size)
    deep.expand([(0, 3), None, None])
    last = dense(deep.expand([(1, 1), (0, 2), None]), backend.vocab_size)
    middle = dense(deep.expand([(3, 5), (0, 1), None]), backend.vocab_size)
    first = dense(deep.expand([(5, 4), None, None]), backend.vocab_size)
    assert same(one[:, 0], first[:, 0], entry.tolerance)
    assert same(one[:, 1], middle[:, 0], entry.tolerance)
    assert same(one[:, 2], last[:, 0], entry.tolerance)


def test_empty_places_are_ignored(entry: Entry, backend: Backend) -> None:
    full, sparse = Walk(backend, PROMPTS), Walk(backend, PROMPTS)
    full.expand([(0, 1), (0, 2), None])
    expected = dense(full.expand([(1, 3), (2, 4), None]), backend.vocab_size)
    # The same nodes, but rows take turns, as they do when some searches have ended.
    sparse.expand([(0, 1), (0, 2), None], [None, None, None], [None, None, None])
    sparse.expand([None, None, None], [(0, 1), (0, 2), None], [(0, 1), (0, 2), None])
    sparse.expand([None] * 3, [None] * 3, [None] * 3)
    given = dense(sparse.expand([(1, 3), (2, 4), None]), backend.vocab_size)
    assert same(given[:, :2], expected[:, :2], entry.tolerance)


def test_rows_are_independent(entry: Entry, backend: Backend) -> None:
    places: list[list[Node]] = [
        [(0, 1), (0, 2), None],
        [(0, 3), None, None],
        [(0, 5), (0, 4), (0, 1)],
    ]
    together = Walk(backend, PROMPTS)
    found = dense(together.expand(*places), backend.vocab_size)
    roots = dense(together.root, backend.vocab_size)
    for row in range(3):
        alone = Walk(backend, [PROMPTS[row]])
        assert same(dense(alone.root, backend.vocab_size)[0], roots[row], entry.tolerance)
        own = dense(alone.expand(places[row]), backend.vocab_size)
        for place, node in enumerate(places[row]):
            if node is not None:
                assert same(own[0, place], found[row, place], entry.tolerance)


def test_the_whole_capacity_can_be_used(entry: Entry, backend: Backend) -> None:
    walk = Walk(backend, PROMPTS)
    for _ in range((CAPACITY - 1) // WIDTH):
        walk.expand([(0, 1), (0, 2), (0, 3)])
    left = (CAPACITY - 1) % WIDTH
    last = walk.expand([(0, 4)] * left + [None] * (WIDTH - left))
    assert int(walk.tree.count.max()) == CAPACITY
    expected = dense(Walk(backend, [[*p, 4] for p in PROMPTS]).root, backend.vocab_size)
    assert same(dense(last, backend.vocab_size)[:, 0], expected[:, 0], entry.tolerance)


def test_whole_distributions_are_given_where_they_are_declared(
    entry: Entry, backend: Backend
) -> None:
    walk, spec = Walk(backend, PROMPTS), BatchSpec(WIDTH, CAPACITY, DEPTH, num_children=1)
    if not backend.capabilities.full_logits:
        with pytest.raises(OptionError, match="lists at most"):
            backend.check(spec, whole=True)
        return
    backend.check(spec, whole=True)
    listed = Walk(backend, PROMPTS)
    nodes: list[Node] = [(0, 1), (0, 2), (0, 3)]
    found = walk.session.evaluate(walk.group(*[nodes] * 3), whole=True)
    assert isinstance(found, Tensor), "whole distributions are logits"
    assert found.shape == (3, WIDTH, backend.vocab_size)
    expected = dense(listed.expand(nodes), backend.vocab_size)
    given = found.double().cpu()
    if not backend.capabilities.normalised:
        given = given.log_softmax(dim=-1)
    assert same(given, expected, max(entry.tolerance, 1e-6))
    total = given.exp().sum(dim=-1)
    assert torch.allclose(total, torch.ones_like(total), atol=1e-5), "declared as normalised"


def test_limits_of_lists_are_true(backend: Backend) -> None:
    most = backend.capabilities.max_listed
    if most is None or most >= backend.vocab_size:
        return
    with pytest.raises(OptionError, match=f"max_children={most}"):
        backend.check(BatchSpec(WIDTH, CAPACITY, DEPTH, num_children=most + 1), whole=False)


def test_a_search_can_be_replaced_while_others_go_on(entry: Entry, backend: Backend) -> None:
    walk = Walk(backend, PROMPTS)
    walk.expand([(0, 1), (0, 2), None])
    fresh = [4, 1, 3]  # no longer than the longest prompt, as queues promise
    roots = walk.read({1: fresh})
    replaced = Walk(backend, [PROMPTS[0], fresh, PROMPTS[2]])
    size = backend.vocab_size
    assert same(dense(roots, size)[1], dense(replaced.root, size)[1], entry.tolerance)
    replaced.expand([(0, 1), (0, 2), None], [None] * 3, [(0, 1), (0, 2), None])
    places: list[list[Node]] = [[(1, 3), (2, 4), None], [(0, 5), None, None], [(1, 3), None, None]]
    given = dense(walk.expand(*places), size)
    expected = dense(replaced.expand(*places), size)
    for row, number in enumerate((2, 1, 1)):
        assert same(given[row, :number], expected[row, :number], entry.tolerance)


def test_searches_go_on_in_a_session_of_another_size(entry: Entry, backend: Backend) -> None:
    walk, alone = Walk(backend, PROMPTS), Walk(backend, [PROMPTS[2], PROMPTS[0]])
    for one in (walk, alone):
        one.expand([(0, 1), (0, 2), None])
    assert walk.session.capabilities.resize, "a server's batches could not grow or shrink"
    session = walk.session.resize([2, 0], 2, max(map(len, PROMPTS)))
    group = alone.group(*[[(1, 3), (2, 4), None]] * 2)
    given = dense(alone.listed(session.evaluate(group, whole=False)), backend.vocab_size)
    expected = dense(alone.listed(alone.session.evaluate(group, whole=False)), backend.vocab_size)
    assert same(given[:, :2], expected[:, :2], entry.tolerance)


def test_can_be_closed_twice_and_opened_again(entry: Entry, backend: Backend) -> None:
    walk = Walk(backend, PROMPTS)
    walk.session.close()
    walk.session.close()
    again = Walk(backend, PROMPTS)
    expected, given = dense(walk.root, backend.vocab_size), dense(again.root, backend.vocab_size)
    assert same(given, expected, entry.tolerance)
