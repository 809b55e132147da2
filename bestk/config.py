"""SearchConfig: every setting of a search, checked, with its one default.

Knows the rules between settings. Touches neither disk, network nor torch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Interval

from bestk.errors import OptionError
from bestk.settings import (
    MOST,
    Count,
    Factor,
    Natural,
    Penalty,
    Share,
    Weight,
    constraint,
    digest,
    every_setting,
    no_setting,
    plain,
    search,
    shaping,
    stopping,
)

FLOATS = ("float32", "bfloat16", "float16")
DTYPES = ("auto", *FLOATS, "4bit")
DEFAULT_MODEL = "smollm2"
SELECTIONS = ("best", "diverse")
DIVERSITY = 0.5  # weight of novelty where texts are to differ
GRAMMARS = ("regex", "json_schema", "grammar")

# A node's table of children is this wide at most when `min_prob` alone would allow more.
WIDEST_CHILDREN = 1000

# Nodes expanded in one model call at most, where that follows from `num_texts`.
WIDEST_STEP = 32

# What orders the nodes of Algorithm 2: whoever names one of them asks for it.
_OF_BEST_K = (
    *("scoring", "length_alpha", "decay", "decay_weight", "decay_power", "certify"),
    *("depth_bonus", "prune_margin"),
)

# What a sample of texts has no use for: it is settled by the model's probabilities and a seed.
NOT_OF_SAMPLES = (
    *_OF_BEST_K,
    *("min_prob", "min_children", "max_children", "max_completions", "must_include"),
)


_BY_N: Any = None  # replaced by what follows from `num_texts`


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """The settings of one search.

    >>> SearchConfig(k=5, beam_size=10, max_new_tokens=30).total_budget
    300
    """

    num_texts: Count | None = search(
        "Different texts that are wanted; the budget is then n × max new tokens."
    )  # n
    fill: bool = search(
        "Fill n up; else texts that look much worse than the best are left out.", True
    )
    novelty: Annotated[float, Interval(ge=0, le=100)] = search(
        "What saying something new is worth, in nats; or similar, different, very different.", 1.0
    )  # μ
    k: Count = search("Nodes expanded in one model call: 5, or n where n texts are wanted.", _BY_N)
    beam_size: Count = search(
        "Equivalent beam size, 10 or n: the budget is beam size × max new tokens.", _BY_N
    )  # b
    max_new_tokens: Count = search("Longest text, in tokens.", 30)  # T
    min_new_tokens: Natural = search("Shortest text, in tokens.", 0)
    budget: Count | None = search(
        "Node expansions in total, instead of beam size × max new tokens."
    )  # C
    scoring: Literal["mean", "sum", "last"] = search(
        "Score of a node: mean, sum, last.", "mean"
    )  # h
    length_alpha: Annotated[float | None, Interval(ge=-20, le=20)] = search(
        "Score by the sum of log-probabilities over length^alpha, instead."
    )  # α
    decay: Literal["power", "log", "none"] = search(
        "How waiting lowers a node's priority: power, log, none.", "power"
    )
    decay_weight: Weight = search("Weight of the decay: higher prefers newer nodes.", 0.05)  # κ
    decay_power: Annotated[float, Interval(gt=0, le=20)] = search(
        "Power of a node's age in the decay.", 0.5
    )  # β
    min_prob: Annotated[float, Interval(ge=0, le=1)] = search(
        "Tokens below this probability are not opened.", 0.05
    )  # γ
    min_children: Natural = search("Likeliest tokens opened in any case.", 1)
    max_children: Count | None = search(
        "Tokens looked at per node; all that can pass min prob unless given."
    )
    max_frontier: Count = search("Open nodes kept after each step.", 500)
    prune_margin: Weight | None = search(
        "Drop open nodes whose score is more than this below the k-th best."
    )  # ε
    depth_bonus: Weight = search(
        "Added to a node's priority for each of its tokens: the search goes deep.", 0.0
    )
    sample: Literal["texts", "tokens"] | None = search(
        "Draw texts, n different ones without replacement, or tokens, each node's children."
    )
    seed: Annotated[int, Interval(ge=-MOST)] = search("Seed of what is drawn.", 0)
    max_completions: Count | None = stopping("Stop once this many texts are complete.")
    timeout: Annotated[float | None, Interval(gt=0)] = stopping("Stop after this many seconds.")
    certify: Count | None = stopping("Stop once this many texts are proven the likeliest.")
    rank_by: Literal["mean", "sum", "score", "step"] = search(
        "Order of the texts: mean, sum, score, step.", "mean"
    )
    on_cut: Literal["keep", "trim"] = search(
        "Texts that are cut off: keep them so, or trim them to their last whole sentence.", "keep"
    )
    policy: str = search(
        "Which nodes come next: best-k, the paper's algorithm, or diverse, for n texts.", _BY_N
    )
    stop_ids: tuple[int, ...] = stopping("Token id that completes a text.", ())
    stop: tuple[str, ...] = stopping("String that completes a text.", ())
    end_prob: Share | None = stopping(
        "A text may end behind a sentence if that is so likely; told n, 0.01, 1 for never."
    )
    must_include: tuple[str, ...] = constraint(
        "Word or phrase that every text holds, forms as 'ran|runs'.", ()
    )
    include_bonus: Weight = constraint(
        "Added to the score for each of them that a node's text holds.", 0.5
    )
    regex: str | None = constraint("Regular expression that every text matches from start to end.")
    json_schema: str | None = constraint("A JSON schema: every text is a document of it.")
    grammar: str | None = constraint("An EBNF grammar: every text derives from its rule root.")

    # What shapes the model's probabilities before the search sees them; names are transformers'.
    temperature: Factor = shaping(
        "Divides the logits: above 1 flattens the model's distributions.", 1.0
    )
    top_k: Count | None = shaping("Keep this many of the likeliest tokens.")
    top_p: Share | None = shaping(
        "Keep the likeliest tokens that hold this share of the probability."
    )
    min_p: Share | None = shaping(
        "Keep tokens that have this share of the likeliest one's probability."
    )
    typical_p: Share | None = shaping(
        "Keep tokens whose surprise is nearest the entropy, of this share in all."
    )
    repetition_penalty: Factor = shaping(
        "Above 1, tokens of the prompt and the text get less likely.", 1.0
    )
    presence_penalty: Penalty = shaping(
        "Taken off the logits of tokens that the text holds already.", 0.0
    )
    frequency_penalty: Penalty = shaping(
        "Taken off them for each time that the text holds them.", 0.0
    )
    no_repeat_ngram_size: Count | None = shaping(
        "No n-gram of this size comes twice, prompt included."
    )
    encoder_repetition_penalty: Factor = shaping("Above 1, tokens of the prompt get likelier.", 1.0)
    encoder_no_repeat_ngram_size: Count | None = shaping(
        "No n-gram of this size comes from the prompt."
    )
    bad_words: tuple[str, ...] = shaping("Word that no text holds.", ())
    bad_words_ids: tuple[tuple[int, ...], ...] = shaping(
        "Sequence of token ids that no text holds.", ()
    )
    suppress_tokens: tuple[int, ...] = shaping("Token id that no text holds.", ())
    begin_suppress_tokens: tuple[int, ...] = shaping("Token id that no text begins with.", ())
    forced_bos_token_id: Natural | None = shaping("Token id that every text begins with.")
    forced_eos_token_id: tuple[int, ...] = shaping(
        "Token id that ends a text of max new tokens.", ()
    )

    def __post_init__(self) -> None:
        for setting in every_setting(SearchConfig):
            object.__setattr__(self, setting.name, setting.read(getattr(self, setting.name)))
        self._follow_from_n()
        self._check_rules()
        if self.k > self.total_budget:
            raise OptionError(
                f"k must be at most the budget of {self.total_budget}, got {self.k}: "
                "lower k, or raise budget, beam_size or max_new_tokens"
            )
        if self.min_new_tokens > self.max_new_tokens:
            raise OptionError(
                f"min_new_tokens must be at most max_new_tokens={self.max_new_tokens}, "
                f"got {self.min_new_tokens}"
            )

    @classmethod
    def of(cls, options: Mapping[str, Any], base: SearchConfig | None = None) -> SearchConfig:
        """Build a config from loose options; an unknown name is an error that names the nearest."""
        for name in options:
            if name not in _DEFAULTS:
                raise OptionError(no_setting(name, _DEFAULTS))
        if base is None:
            return cls(**options)
        if any(
            options.get(n, getattr(base, n)) != getattr(base, n) for n in ("num_texts", "sample")
        ):
            usual = cls(num_texts=base.num_texts)
            names = ("k", "beam_size", "policy", "end_prob")
            as_usual = {n: None for n in names if getattr(base, n) == getattr(usual, n)}
            options = {**as_usual, **options}
        return dataclasses.replace(base, **options)

    @property
    def total_budget(self) -> int:
        """Node expansions that the search may spend, the root's included."""
        return self.beam_size * self.max_new_tokens if self.budget is None else self.budget

    @property
    def shaping(self) -> tuple[str, ...]:
        """The names of the settings that change the model's probabilities."""
        return tuple(name for name in SHAPING if getattr(self, name) != _DEFAULTS[name])

    @property
    def alpha(self) -> float | None:
        """The exponent α of the length, or None for the memoryless score."""
        if self.length_alpha is not None:
            return float(self.length_alpha)
        return {"mean": 1.0, "sum": 0.0, "last": None}[self.scoring]

    @property
    def is_plain(self) -> bool:
        """Whether the search is Algorithm 2 with a heap of one size, over listed tokens."""
        return (self.policy, self.sample, self.prune_margin) == ("best-k", None, None)

    @property
    def constraints(self) -> tuple[str, ...]:
        """The names of the settings that say what a text must be."""
        return tuple(name for name in ("must_include", *GRAMMARS) if getattr(self, name))

    @property
    def has_grammar(self) -> bool:
        """Whether every text is to match a regex, a JSON schema or a grammar."""
        return any(getattr(self, name) is not None for name in GRAMMARS)

    def num_children(self, vocab_size: int) -> int:
        """Children worth asking the model for: at most 1/γ tokens have probability ≥ γ."""
        by_prob = vocab_size  # also where 1/γ is past the range of a double
        if self.min_prob * vocab_size > 1:
            by_prob = math.floor(1 / self.min_prob + 1e-9)
        if self.sample == "texts":  # of more than n + 1 none has a key that matters
            return min((self.num_texts or self.beam_size) + 1, vocab_size)
        # With n of each node's children there are n texts wherever the model has as many.
        n = self.num_texts if self.policy == "diverse" else None
        by_prob = max(by_prob, self.min_children, n or 0)
        widest = WIDEST_CHILDREN if self.max_children is None else self.max_children
        return max(1, min(by_prob, widest, vocab_size))

    def describe(self) -> str:
        """Write the settings as the `key:value` fields of a signature."""
        scoring = f"alpha{self.length_alpha:g}" if self.length_alpha is not None else self.scoring
        decay = {
            "power": f"power,{self.decay_weight:g},{self.decay_power:g}",
            "log": f"log,{self.decay_weight:g}",
            "none": "none",
        }[self.decay]
        is_best_k = self.policy != "diverse" and self.sample != "texts"
        fields = [
            f"k:{self.k}",
            f"b:{self.beam_size}",
            f"T:{self.max_new_tokens}",
            f"C:{self.total_budget}",
            *([f"score:{scoring}", f"decay:{decay}"] if is_best_k else []),
            *([f"minprob:{self.min_prob:g}"] if self.sample != "texts" else []),
            f"heap:{self.max_frontier}",
            f"rank:{self.rank_by}",
            *([f"novelty:{self.novelty:g}"] if self.policy == "diverse" else []),
        ]
        told = {"k", "beam_size", "max_new_tokens", "budget", "scoring", "length_alpha", "decay"}
        told |= {"decay_weight", "decay_power", "min_prob", "max_frontier", "rank_by", "novelty"}
        if self.policy == "best-k":
            told |= {"policy"} if self.sample else {"policy", "num_texts"}
        if self.sample is None:
            told |= {"seed"}
        for name, default in _DEFAULTS.items():
            value = getattr(self, name)
            if name not in told and value != default:
                shown = digest(value) if name in GRAMMARS else plain(value)
                fields.append(f"{name.replace('_', '')}:{shown}")
        return "|".join(fields)

    def _follow_from_n(self) -> None:
        """Settle what was not given by how many texts are wanted."""
        n = self.num_texts
        self._settle("beam_size", n or 10)
        self._settle("k", 5 if n is None else min(n, WIDEST_STEP, self.total_budget))
        names_best_k = any(getattr(self, name) != _DEFAULTS[name] for name in _OF_BEST_K)
        is_best_k = n is None or names_best_k or self.sample is not None
        self._settle("policy", "best-k" if is_best_k else "diverse")
        if self.policy == "diverse":
            self._settle("end_prob", 0.01)

    def _settle(self, name: str, usual: Any) -> None:
        if getattr(self, name) is None:
            object.__setattr__(self, name, usual)

    def _check_rules(self) -> None:
        """Check what settings say of one another."""
        if self.sample == "texts" and self.max_frontier <= (self.num_texts or self.beam_size):
            raise OptionError(
                "sample='texts' needs max_frontier above num_texts, "
                f"got {self.max_frontier}: raise it"
            )
        if self.length_alpha is not None and self.scoring != "mean":
            raise OptionError(
                f"length_alpha={self.length_alpha:g} replaces the score, "
                f"got scoring={self.scoring!r} too: give one of them"
            )
        if self.sample is not None and self.policy != "best-k":
            raise OptionError(
                f"sample={self.sample!r} says which nodes come next: leave "
                f"policy={self.policy!r} out"
            )
        for name in NOT_OF_SAMPLES if self.sample == "texts" else ():
            if getattr(self, name) != _DEFAULTS[name]:
                raise OptionError(
                    f"sample='texts' draws by probability alone: leave {name}="
                    f"{getattr(self, name)!r} out"
                )
        given = [name for name in GRAMMARS if getattr(self, name) is not None]
        if len(given) > 1:
            raise OptionError(f"{' and '.join(given)} exclude each other: give one of them")


@dataclass(frozen=True, kw_only=True)
class GrammarLimits:
    """What a grammar of a stranger may be, and what compiling it may take."""

    characters: int = 100_000
    depth: int = 64  # of brackets in brackets
    items: int = 10_000  # commas and bars: values of an enum, alternatives
    seconds: float = 5.0  # of a processor
    megabytes: int = 512


_DEFAULTS = {setting.name: setting.default for setting in every_setting(SearchConfig)}

# What changes the model's probabilities.
SHAPING = tuple(s.name for s in every_setting(SearchConfig) if s.panel == "Shaping")
