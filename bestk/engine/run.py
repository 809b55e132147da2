"""A batch of searches under way: the one object behind streams, progress bars and live pages.

Puts together what a search needs (encoded prompts, rules, shapers), runs the loop of `best_k.py`,
and turns its state into results whenever asked. Knows prompts and texts through the language model.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from bestk.backends.base import Shaper
from bestk.config import SearchConfig
from bestk.constraints import Shapers, constraints_of
from bestk.constraints.criteria import Criteria, absorb
from bestk.core.best_k import Rule, Searches, Step, run
from bestk.core.record import TreeRecord
from bestk.engine.many import check_prompts, is_out_of_memory, out_of_memory, stop_rules
from bestk.errors import BestKError, ModelError, OutOfMemoryError, SearchInterrupted
from bestk.lm.language_model import LanguageModel
from bestk.processors.base import Contexts, Pipeline
from bestk.processors.pipeline import Hooks, shaping_steps
from bestk.result import Hypothesis, SearchResult, collect, completions


class Run:
    """A batch of searches under way: iterate it for the steps, ask it for what was found."""

    def __init__(
        self,
        lm: LanguageModel,
        prompts: Sequence[Any],
        config: SearchConfig,
        hooks: Hooks | None = None,
    ) -> None:
        self.lm = lm
        self.prompts = list(prompts)
        self.hooks = hooks or Hooks()
        self.prompt_ids = [lm.encode(prompt) for prompt in self.prompts]
        self.config, criteria = absorb(
            config,
            self.hooks.stopping_criteria,
            [len(getattr(lm.backend, "decoder_prompt", ids)) for ids in self.prompt_ids],
            vocab_size=lm.backend.vocab_size,
            has_text=lm.tokenizer is not None,
        )
        check_prompts(lm, self.prompt_ids, self.config)
        self.contexts = Contexts(lm.backend.device, self.hooks.counted_length)
        given = self.hooks.eos_ids
        self.eos_ids = lm.backend.eos_ids if given is None else given
        rules = stop_rules(lm, self.config)
        if criteria:
            rules.append(Criteria(criteria, self.contexts, self.config.min_new_tokens))
        constraints = constraints_of(self.config, lm, rules)
        self.shaper = self._shaper(constraints.shaper)
        self.searches = self._searches([*constraints.rules, *rules])
        self.started = time.perf_counter()
        self.seconds = 0.0
        self._seen = [(0, 0)] * len(self.prompts)  # slots and completions that `fresh` told of
        self._steps: Iterator[Step] | None = None

    def __iter__(self) -> Iterator[Step]:
        """Yield a Step for every model call. Breaks off with what was found, never without."""
        self.started = time.perf_counter()
        try:
            session = self.lm.backend.start(self.prompt_ids, self.searches.room, self.shaper)
            # An encoder-decoder's texts follow on its decoder's prompt, which the session knows.
            tell = getattr(session, "decoder_prompts", None)
            sources = [ids if isinstance(ids, list) else [] for ids in self.prompt_ids]
            self.contexts.fill(sources if tell is None else tell(), sources)
            self._steps = run(session, self.searches)
            for step in self._steps:
                self.seconds = time.perf_counter() - self.started
                yield step
            complaint = self.searches.complaint({row: row for row in range(len(self.prompts))})
            if complaint is not None:
                raise ModelError(complaint)
        except (BestKError, RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                expanded = int(self.searches.tree.count.max())
                raise self._out_of_memory(expanded, self.results()) from error
            if not isinstance(error, BestKError) or self._steps is None:
                raise
            raise SearchInterrupted(str(error), self.results()) from error
        finally:
            self.close()

    def fresh(self) -> list[list[Hypothesis]]:
        """Return, for every prompt, the texts completed since the last call."""
        counts = self.searches.tree.count.tolist()
        totals = self.searches.num_completions.tolist()
        found: list[list[Hypothesis]] = [[] for _ in counts]
        for row, (slot, total) in enumerate(self._seen):
            if totals[row] > total:
                (record,) = TreeRecord.of(self.searches.tree, [row])
                bound = float("inf")  # nothing is certain while the search goes on
                found[row] = completions(record, self.config, bound, self._decode, since=slot)
        self._seen = list(zip(counts, totals, strict=True))
        return found

    def results(self, *, keep_tree: bool = True) -> list[SearchResult]:
        """Return a result for every prompt, whether or not its search has ended."""
        return collect(
            self.searches,
            prompts=dict(enumerate(self.prompts)),
            decode=self._decode,
            model=self.lm.name,
            seconds=self.seconds,
            keep_tree=keep_tree,
            hooks=self.hooks.names,
            token_texts=self.lm.token_texts,
        )

    def close(self) -> None:
        """End the searches and free the model's memory of them."""
        if self._steps is not None:
            self._steps.close()  # type: ignore[attr-defined]

    def _shaper(self, constraint: Any) -> Shaper | None:
        """Chain the processors, in `generate`'s order, and then the constraints."""
        backend = self.lm.backend
        steps = shaping_steps(
            self.config,
            self.hooks,
            device=backend.device,
            vocab_size=backend.vocab_size,
            eos_ids=self.eos_ids,
            tokenizer=self.lm.tokenizer,
        )
        if not steps:
            shaper: Shaper | None = constraint
            return shaper
        processors = Pipeline(self.contexts, steps)
        if constraint is None:
            return processors
        return Shapers([processors, *constraint.shapers], constraint.seeker)

    def _searches(self, rules: Sequence[Rule]) -> Searches:
        backend = self.lm.backend
        try:
            return Searches(
                self.config,
                batch=len(self.prompts),
                vocab_size=backend.vocab_size,
                eos_ids=self.eos_ids,
                device=backend.device,
                rules=rules,
            )
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise self._out_of_memory(expanded=0) from error

    def _decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        return self.lm.decode(sequences, self.config.stop, self.config.min_new_tokens)

    def _out_of_memory(
        self, expanded: int, partial: list[SearchResult] | None = None
    ) -> OutOfMemoryError:
        message = out_of_memory(self.lm, self.config, len(self.prompts), expanded)
        return OutOfMemoryError(message, partial)
