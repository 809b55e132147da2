"""SearchConfig: every setting of a search, checked, with its one default.

Knows the rules between settings. Touches neither disk, network nor torch.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bestk.errors import OptionError, unknown
from bestk.settings import (
    DECAYS,
    LEAST,
    MOST,
    ON_CUT,
    RANKINGS,
    REACH,
    SAMPLES,
    SCORINGS,
    SHAPING,
    digest,
    json_text,
    nats_of,
    no_setting,
    phrases_of,
    plain,
    tuple_of,
    tuples_of,
)

DTYPES = ("auto", "float32", "bfloat16", "float16")
DEFAULT_MODEL = "smollm2"
SELECTIONS = ("best", "diverse")
DIVERSITY = 0.5  # weight of novelty where texts are to differ
GRAMMARS = ("regex", "json_schema", "grammar")

_POSITIVE = ("temperature", "repetition_penalty", "encoder_repetition_penalty")
_SHARES = ("top_p", "min_p", "typical_p")

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

    num_texts: int | None = None  # n: this many different texts; None: what Algorithm 2 finds
    fill: bool = True  # fill n up; false: leave out what is much less likely than the best
    novelty: float = 1.0  # μ, in nats: what saying something new is worth; or a word for it
    k: int = _BY_N  # nodes expanded in one model call: 5, or n
    beam_size: int = _BY_N  # b: equivalent beam size, budget = b * T unless given: 10, or n
    max_new_tokens: int = 30  # T
    min_new_tokens: int = 0
    budget: int | None = None  # C: node expansions in total
    scoring: str = "mean"  # h: mean (α=1), sum (α=0), last (BKS_last)
    length_alpha: float | None = None  # α: sum of log p over length^α, instead of `scoring`
    decay: str = "power"  # power: κ·age^β, log: κ·ln(1 + age), none
    decay_weight: float = 0.05  # κ
    decay_power: float = 0.5  # β
    min_prob: float = 0.05  # γ: a child below this conditional probability is not opened
    min_children: int = 1  # the best children are opened however flat the distribution is
    max_children: int | None = None  # children looked at per node; default: all that can pass γ
    max_frontier: int = 500  # heap size
    prune_margin: float | None = None  # ε: a node this much below the k-th best score is dropped
    depth_bonus: float = 0.0  # added to a priority for each token: the appendix's aux(n)
    sample: str | None = None  # drawn: "texts", n without replacement, or "tokens" of each node
    seed: int = 0  # of what is drawn
    max_completions: int | None = None  # stop rule
    timeout: float | None = None  # stop rule, seconds
    certify: int | None = None  # stop rule: this many texts proven to be the model's likeliest
    rank_by: str = "mean"  # order of the results
    on_cut: str = "keep"  # texts cut at max_new_tokens are kept so, or "trim": to whole sentences
    policy: str = _BY_N  # which nodes come next: "best-k" (Algorithm 2), or "diverse" if told n
    stop_ids: tuple[int, ...] = ()  # token ids that complete a text, besides the model's EOS ids
    stop: tuple[str, ...] = ()  # strings that complete a text
    end_prob: float | None = None  # a likelier end of a sentence may end a text; told n, 0.01
    must_include: tuple[str, ...] = ()  # words or phrases that every text holds; "ran|runs": either
    include_bonus: float = 0.5  # added to the score for each of them that a node's text holds
    regex: str | None = None  # every text matches it from start to end
    json_schema: str | None = None  # every text is a JSON document of this schema; a dict will do
    grammar: str | None = None  # every text derives from `root` of this EBNF grammar

    # What shapes the model's probabilities before the search sees them; names are transformers'.
    temperature: float = 1.0
    top_k: int | None = None  # keep this many of the likeliest tokens
    top_p: float | None = None  # keep the likeliest tokens that hold this share of probability
    min_p: float | None = None  # keep tokens of this share of the likeliest one's probability
    typical_p: float | None = None  # keep the most typical tokens that hold this share
    repetition_penalty: float = 1.0  # above 1: tokens of the prompt and the text get less likely
    presence_penalty: float = 0.0  # taken off the logit of tokens that the text holds
    frequency_penalty: float = 0.0  # and of them for each time that it does
    no_repeat_ngram_size: int | None = None  # no n-gram of this size comes twice, prompt included
    encoder_repetition_penalty: float = 1.0  # above 1: tokens of the prompt get likelier
    encoder_no_repeat_ngram_size: int | None = None  # no n-gram of this size comes from the prompt
    bad_words: tuple[str, ...] = ()  # words that no text holds, as the tokenizer spells them
    bad_words_ids: tuple[tuple[int, ...], ...] = ()  # token sequences that no text holds
    suppress_tokens: tuple[int, ...] = ()  # token ids that no text holds
    begin_suppress_tokens: tuple[int, ...] = ()  # token ids that no text begins with
    forced_bos_token_id: int | None = None  # the first token of every text
    forced_eos_token_id: tuple[int, ...] = ()  # the last token of a text of max_new_tokens

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop_ids", tuple_of("stop_ids", self.stop_ids, int))
        object.__setattr__(self, "stop", tuple_of("stop", self.stop, str))
        object.__setattr__(self, "must_include", phrases_of(self.must_include))
        object.__setattr__(self, "json_schema", json_text(self.json_schema))
        object.__setattr__(self, "bad_words", tuple_of("bad_words", self.bad_words, str))
        for name in ("suppress_tokens", "begin_suppress_tokens", "forced_eos_token_id"):
            object.__setattr__(self, name, tuple_of(name, getattr(self, name), int))
        object.__setattr__(self, "novelty", nats_of(self.novelty))
        self._follow_from_n()
        object.__setattr__(self, "bad_words_ids", tuples_of("bad_words_ids", self.bad_words_ids))
        self._check_counts()
        self._check_reals()
        self._check_names()
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
        known = {f.name for f in dataclasses.fields(cls)}
        for name in options:
            if name not in known:
                raise OptionError(no_setting(name, known))
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
        fields = {field.name: field.default for field in dataclasses.fields(self)}
        return tuple(name for name in SHAPING if getattr(self, name) != fields[name])

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
        ]
        told = {"k", "beam_size", "max_new_tokens", "budget", "scoring", "length_alpha", "decay"}
        told |= {"decay_weight", "decay_power", "min_prob", "max_frontier", "rank_by"}
        if self.policy == "best-k":
            told |= {"policy", "novelty"} if self.sample else {"policy", "num_texts", "novelty"}
        if self.sample is None:
            told |= {"seed"}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name not in told and value != field.default:
                shown = digest(value) if field.name in GRAMMARS else plain(value)
                fields.append(f"{field.name.replace('_', '')}:{shown}")
        return "|".join(fields)

    def _follow_from_n(self) -> None:
        """Settle what was not given by how many texts are wanted."""
        for name in ("num_texts", "max_new_tokens", "budget"):
            self._check_count(name)
        n = self.num_texts
        self._settle("beam_size", n or 10)
        self._settle("k", 5 if n is None else min(n, WIDEST_STEP, self.total_budget))
        fields = {field.name: field.default for field in dataclasses.fields(self)}
        names_best_k = any(getattr(self, name) != fields[name] for name in _OF_BEST_K)
        is_best_k = n is None or names_best_k or self.sample is not None
        self._settle("policy", "best-k" if is_best_k else "diverse")
        if self.policy == "diverse":
            self._settle("end_prob", 0.01)

    def _settle(self, name: str, usual: Any) -> None:
        if getattr(self, name) is None:
            object.__setattr__(self, name, usual)

    def _check_counts(self) -> None:
        for name in LEAST:
            self._check_count(name)
        if self.sample == "texts" and self.max_frontier <= (self.num_texts or self.beam_size):
            raise OptionError(
                "sample='texts' needs max_frontier above num_texts, "
                f"got {self.max_frontier}: raise it"
            )

    def _check_count(self, name: str) -> None:
        value = getattr(self, name)
        if value is None and name in _OPTIONAL:
            return
        if isinstance(value, bool) or not isinstance(value, int):
            raise OptionError(f"{name} must be a whole number, got {value!r}")
        if value < LEAST[name]:
            none = ": leave it out for none" if name in _OPTIONAL else ""
            raise OptionError(f"{name} must be at least {LEAST[name]}, got {value}{none}")
        if value > MOST:
            raise OptionError(f"{name} must be at most {MOST}, got more")

    def _check_reals(self) -> None:
        reals = ["min_prob", "decay_weight", "decay_power", "length_alpha", "timeout", "end_prob"]
        reals += ["presence_penalty", "frequency_penalty", "include_bonus", "novelty"]
        reals += ["prune_margin", "depth_bonus"]
        for name in [*reals, *_POSITIVE, *_SHARES]:
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise OptionError(f"{name} must be a number, got {value!r}")
            if not -sys.float_info.max <= value <= sys.float_info.max:  # whole numbers too
                raise OptionError(f"{name} must be finite, got {value}")
        if not 0 <= self.min_prob <= 1:
            raise OptionError(f"min_prob is a probability, from 0 to 1, got {self.min_prob}")
        if self.end_prob is not None and not 0 < self.end_prob <= 1:
            raise OptionError(f"end_prob is a probability above 0, at most 1, got {self.end_prob}")
        if self.decay_weight < 0:
            raise OptionError(f"decay_weight must be at least 0, got {self.decay_weight}")
        if self.decay_power <= 0:
            raise OptionError(
                f"decay_power must be above 0, got {self.decay_power}: "
                "use decay='none' to turn the decay off"
            )
        if self.timeout is not None and self.timeout <= 0:
            raise OptionError(f"timeout must be above 0 seconds, got {self.timeout}")
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise OptionError(f"{name} must be above 0, got {getattr(self, name)}: 1 is none")
        for name in _SHARES:
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise OptionError(f"{name} must be above 0 and at most 1, got {value}")
        for name, (least, most) in REACH.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise OptionError(f"{name} goes from {least:g} to {most:g}, got {value:g}")

    def _check_names(self) -> None:
        names = {"scoring": SCORINGS, "decay": DECAYS, "rank_by": RANKINGS, "on_cut": ON_CUT}
        if self.sample is not None:
            names["sample"] = SAMPLES
        if not isinstance(self.fill, bool):
            raise OptionError(f"fill must be true or false, got {self.fill!r}")
        for name, known in names.items():
            value = getattr(self, name)
            if value not in known:
                raise OptionError(unknown(name, str(value), known))
        if self.length_alpha is not None and self.scoring != "mean":
            raise OptionError(
                f"length_alpha={self.length_alpha:g} replaces the score, "
                f"got scoring={self.scoring!r} too: give one of them"
            )
        for name in GRAMMARS:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise OptionError(f"{name} must be a text that is not empty, got {value!r}")
        if self.sample is not None and self.policy != "best-k":
            raise OptionError(
                f"sample={self.sample!r} says which nodes come next: leave "
                f"policy={self.policy!r} out"
            )
        fields = {field.name: field.default for field in dataclasses.fields(self)}
        for name in NOT_OF_SAMPLES if self.sample == "texts" else ():
            if getattr(self, name) != fields[name]:
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


_OPTIONAL = {f.name for f in dataclasses.fields(SearchConfig) if f.default is None}
