"""Metrics against hand-computed cases, published ones, and their libraries' own scripts."""

from __future__ import annotations

import csv
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from evaluation_toy import run_toy, toy_task
from wordnet import needs_wordnet

from bestk.errors import MissingDataError, MissingExtraError, OptionError
from bestk.rerank.ngrams import distinctness, words
from bestk_eval.board import Scorer
from bestk_eval.examples import Example, Pool
from bestk_eval.extras import require
from bestk_eval.loading import load_runs
from bestk_eval.metrics import registry
from bestk_eval.metrics.basic import Counts
from bestk_eval.metrics.bleu import CorpusBleu, SentenceBleu
from bestk_eval.metrics.overlap import Distinct, SelfBleu
from bestk_eval.metrics.rouge import Rouge
from bestk_eval.metrics.wordnet import Meteor, coverage, wordnet
from bestk_eval.statistics import (
    compare_corpus,
    compare_means,
    estimate,
    holm,
    sign_flip,
)

HYPOTHESES = [
    "The dog runs through the park with a red ball.",
    "Two children are building a castle of sand.",
    "She cooks soup for her friends every Sunday",
    "A man plays the guitar on a busy street.",
    "Birds were singing loudly in the old tree.",
]
REFERENCES = [
    "A dog is running through the park, a red ball in its mouth.",
    "Two kids build a sand castle on the beach.",
    "Every Sunday she makes soup for friends.",
    "A man is playing guitar in the street.",
    "The birds sang in an old tree.",
]


def pool(
    texts: list[str], references: tuple[str, ...] = (), counts: list[int] | None = None
) -> Pool:
    example = Example(id="1", input="x", references=references)
    return Pool(
        example=example,
        texts=tuple(texts),
        counts=tuple(counts or [1] * len(texts)),
        scores=tuple(-float(place) for place in range(len(texts))),
    )


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    hypotheses, references = tmp_path / "hypotheses.txt", tmp_path / "references.txt"
    hypotheses.write_text("\n".join(HYPOTHESES) + "\n", encoding="utf-8")
    references.write_text("\n".join(REFERENCES) + "\n", encoding="utf-8")
    return hypotheses, references


def script(*arguments: str) -> str:
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-m", *arguments], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- distinctness and counts, by hand


def test_distinctness_by_hand() -> None:
    # 8 words; 5 different; 2-grams: a dog, dog runs, runs fast, dog sits, sits here = 5;
    # 3-grams: a dog runs, dog runs fast, a dog sits, dog sits here = 4.
    texts = ["A dog runs fast.", "a dog, sits here"]
    assert distinctness(texts) == [6 / 8, 5 / 8, 4 / 8]
    values = Distinct().score(pool(texts), "all", 10)
    assert values == pytest.approx([75, 62.5, 50, 62.5])


def test_distinctness_counts_duplicates_only_in_the_view_that_does() -> None:
    found = pool(["a b", "c"], counts=[3, 1])
    assert Distinct().score(found, "all", 10)[0] == pytest.approx(100 * 3 / 7)
    assert Distinct().score(found, "unique", 10)[0] == pytest.approx(100)
    assert Distinct().score(found, "top", 1)[:2] == pytest.approx([100, 50])


@pytest.mark.parametrize("texts", [[], [""], ["..."]])
def test_distinctness_of_nothing_is_nothing(texts: list[str]) -> None:
    assert distinctness(texts) == [0, 0, 0]


def test_words() -> None:
    assert words("It's the dog’s re-run: 3.5 ÄÖ!") == [
        "it's",
        "the",
        "dog’s",
        "re-run",
        "3",
        "5",
        "äö",
    ]


def test_counts() -> None:
    assert Counts().score(pool(["a", "b"], counts=[4, 1]), "unique", 10) == [5, 2, 100]
    assert Counts().score(pool([]), "all", 10) == [0, 0, 0]


# --- ROUGE


def test_rouge_by_hand() -> None:
    # unigrams: 3 of 4 and 3 of 5 match: F1 = 2/3; bigrams: 1 of 3 and 1 of 4: F1 = 2/7;
    # longest common subsequence "the cat sat" of 4 and 5: F1 = 2/3.
    example = Example(id="1", input="x", references=("the black cat sat down",))
    scores = Rouge().score(["the cat sat there"], example)[0]
    measures = [100 * 2 / 3, 100 * 2 / 7, 100 * 2 / 3]
    assert scores == pytest.approx([*measures, sum(measures) / 3])


def test_the_oracle_is_of_one_text() -> None:
    """One text is best by ROUGE-1, another by ROUGE-2: the paper's oracle takes both."""
    mean, best = np.array([30.0, 20.0, 30.0, 80 / 3]), np.array([60.0, 40.0, 50.0, 45.0])
    told = dict(zip([c.key for c in Rouge.columns], Rouge().summarise(mean, best), strict=True))
    assert (told["R"], told["O"], told["OR"]) == (80 / 3, 45.0, 50.0)


def test_rouge_takes_the_best_reference_and_stems() -> None:
    example = Example(id="1", input="x", references=("nothing alike", "dogs running"))
    assert Rouge().score(["dog runs"], example)[0] == pytest.approx([100, 100, 100, 100])


def test_rouge_equals_its_own_script(files: tuple[Path, Path], tmp_path: Path) -> None:
    hypotheses, references = files
    out = tmp_path / "rouge.csv"
    script(
        "rouge_score.rouge",
        f"--target_filepattern={references}",
        f"--prediction_filepattern={hypotheses}",
        f"--output_filename={out}",
        "--use_stemmer=true",
        "--aggregate=false",
        "--rouge_types=rouge1,rouge2,rougeL",
    )
    rows = list(csv.DictReader(out.read_text().splitlines()))
    for row, text, reference in zip(rows, HYPOTHESES, REFERENCES, strict=True):
        ours = Rouge().score([text], Example(id="1", input="x", references=(reference,)))[0]
        theirs = [100 * float(row[f"{name}-F"]) for name in ("rouge1", "rouge2", "rougeL")]
        assert ours[:3] == pytest.approx(theirs, abs=1e-4)


# --- METEOR


@needs_wordnet
def test_meteor_of_nltks_published_example() -> None:
    hypothesis = (
        "It is a guide to action which ensures that the military always obeys the commands of "
        "the party"
    )
    references = (
        "It is a guide to action that ensures that the military will forever heed Party commands",
        "It is the guiding principle which guarantees the military forces always being under the "
        "command of the Party",
        "It is the practical guide for the army always to heed the directions of the party",
    )
    example = Example(id="1", input="x", references=references)
    assert Meteor().score([hypothesis], example)[0][0] == pytest.approx(69.44, abs=0.005)


@needs_wordnet
def test_meteor_equals_nltk_on_a_file(files: tuple[Path, Path]) -> None:
    from nltk.tokenize import word_tokenize
    from nltk.translate.meteor_score import meteor_score

    hypotheses, references = (path.read_text().splitlines() for path in files)
    for text, reference in zip(hypotheses, references, strict=True):
        tokens = [word_tokenize(line, preserve_line=True) for line in (reference, text)]
        theirs = meteor_score([tokens[0]], tokens[1], wordnet=wordnet())
        ours = Meteor().score([text], Example(id="1", input="x", references=(reference,)))
        assert ours[0][0] == pytest.approx(100 * theirs)
        assert 0 < theirs < 1


@needs_wordnet
def test_wordnet_knows_synonyms_and_base_forms() -> None:
    assert "automobile" in {lemma.name() for s in wordnet().synsets("car") for lemma in s.lemmas()}
    assert wordnet().morphy("geese") == "goose"


# --- BLEU, chrF, self-BLEU


def test_corpus_bleu_and_chrf_equal_sacrebleus_own_script(files: tuple[Path, Path]) -> None:
    hypotheses, references = map(str, files)
    pools = [pool([h, "other"], (r,)) for h, r in zip(HYPOTHESES, REFERENCES, strict=True)]
    ours = [score(None) for score in CorpusBleu().score(pools, "all", 10)]  # type: ignore[operator]
    for metric, value in zip(("bleu", "chrf"), ours, strict=True):
        printed = script("sacrebleu", references, "-i", hypotheses, "-m", metric, "-b", "-w", "6")
        assert value == pytest.approx(float(printed), abs=1e-5)


def test_corpus_bleu_takes_examples_without_texts_or_references() -> None:
    rows = [pool(["a b c d e"], ("a b c d e",)), pool([], ("a b c d e",)), pool(["z"], ())]
    score = CorpusBleu().score(rows, "all", 10)[0]
    assert callable(score)
    # Half of the words are there: the brevity penalty is exp(1 - 10/5).
    assert score(None) == pytest.approx(100 * math.exp(-1))
    assert score(np.array([0, 0, 2])) == pytest.approx(100)
    assert math.isnan(CorpusBleu().score([pool(["z"])], "all", 10)[0])  # type: ignore[arg-type]


def test_sentence_bleu_by_hand() -> None:
    example = Example(id="1", input="x", references=("the cat sat on the mat",))
    # Precisions 1, 1, 1 of orders that exist, brevity penalty exp(1 - 6/3).
    bleu, chrf = SentenceBleu().score(["the cat sat"], example)[0]
    assert bleu == pytest.approx(100 * math.exp(-1))
    assert 0 < chrf < 100


def test_self_bleu() -> None:
    metric = SelfBleu()
    assert metric.score(pool(["a b c d e", "a b c d e"]), "all", 10) == pytest.approx([100])
    assert metric.score(pool(["a b c d", "e f g h"]), "all", 10)[0] < 15
    assert math.isnan(metric.score(pool(["a b c"]), "all", 10)[0])
    assert math.isnan(metric.score(pool(["a b c", "d"]), "top", 1)[0])


# --- coverage, grammaticality, MAUVE


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("The leaves were falling while mice ran.", 1.0),
        ("A leaf falls.", 2 / 4),
        ("Nothing of it.", 0.0),
        ("", 0.0),
    ],
)
@needs_wordnet
def test_coverage_by_base_forms(text: str, share: float) -> None:
    assert coverage(text, ["leaf", "fall", "mouse", "run"]) == pytest.approx(share)


def test_grammaticality_is_the_probability_of_the_second_label(tmp_path: Path) -> None:
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "dog", "runs"]))
    tokenizer = BertTokenizerFast(vocab_file=str(vocabulary))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=7,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        num_labels=2,
    )
    model = BertForSequenceClassification(config).eval()
    model.save_pretrained(tmp_path / "cola")
    tokenizer.save_pretrained(tmp_path / "cola")
    metrics = registry.build(["grammar"], registry.MetricModels(grammar=str(tmp_path / "cola")))
    assert not metrics.left_out
    grammar = metrics.built[0]
    texts = ["dog runs", "runs dog dog", "dog runs"]
    example = Example(id="1", input="x", references=())
    ours = [row[0] for row in grammar.score(texts, example)]  # type: ignore[attr-defined]
    with torch.no_grad():
        logits = [model(**tokenizer(text, return_tensors="pt")).logits[0] for text in texts]
    assert ours == pytest.approx([100 * float(x.softmax(-1)[1]) for x in logits], abs=1e-3)


def test_a_metric_without_its_model_is_left_out_by_name(tmp_path: Path) -> None:
    metrics = registry.build(
        ["counts", "grammar", "mauve"], registry.MetricModels(grammar="no/cola")
    )
    assert [metric.family for metric in metrics.built] == ["counts", "grammar"]
    assert metrics.left_out.keys() == {"mauve"}
    assert "--mauve-model" in metrics.left_out["mauve"]
    run_toy(tmp_path, task=toy_task(2), methods=("BS",))
    board = Scorer(load_runs([tmp_path]), metrics, samples=20).board()
    assert board.left_out.keys() == {"mauve", "grammar"}
    assert "hf download no/cola" in board.left_out["grammar"]
    assert "GRM" not in board.columns


def test_a_metric_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    left_out = registry.build(["rouge"]).left_out
    assert left_out == {"rouge": "rouge-score is not installed: pip install 'bestk[eval]'"}
    with pytest.raises(MissingExtraError, match="pip install 'bestk\\[serve\\]'"):
        require("no_such_package_at_all", "no-such", "serve")


def test_wordnet_that_is_not_there_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from bestk_eval.metrics import wordnet as module

    monkeypatch.setattr(module, "_find", lambda nltk: None)
    with pytest.raises(MissingDataError, match="downloader wordnet"):
        module.wordnet.__wrapped__()


def test_an_unknown_metric_names_the_nearest() -> None:
    with pytest.raises(OptionError, match="did you mean 'rouge'"):
        registry.build(["rogue"])


def test_signatures_name_versions() -> None:
    for metric in registry.build(["rouge", "meteor", "bleu", "sentence-bleu", "self-bleu"]).built:
        assert any(char.isdigit() for char in metric.signature), metric.signature


@pytest.mark.model
def test_mauve_of_equal_and_of_different_crowds(smollm2: object) -> None:
    people = [
        f"The {a} {b} in the garden."
        for a in ("dog", "cat", "bird", "child", "man")
        for b in ("runs", "sleeps", "plays", "sits", "waits")
    ]
    same = [pool([text], (text,)) for text in people]
    other = [pool([f"{i} + {i} = {2 * i} % zz"], (text,)) for i, text in enumerate(people)]
    models = registry.MetricModels(mauve=smollm2)  # type: ignore[arg-type]
    mauve = registry.build(["mauve"], models).built[0]
    alike = mauve.score(same, "all", 10)[0]  # type: ignore[attr-defined]
    apart = mauve.score(other, "all", 10)[0]  # type: ignore[attr-defined]
    assert alike > 95
    assert apart < 50
    assert math.isnan(mauve.score(same[:5], "all", 10)[0])  # type: ignore[attr-defined]


# --- statistics


def test_the_interval_covers_as_often_as_it_says() -> None:
    generator = np.random.default_rng(1)
    hits = 0
    for _ in range(300):
        found = estimate(generator.normal(5, 2, size=60), 60, samples=400)
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 5 <= found.high
    assert 0.90 <= hits / 300 <= 0.98


def test_estimates_leave_out_examples_without_a_value() -> None:
    assert estimate(np.array([1.0, np.nan, 3.0]), 3).value == 2
    nothing = estimate(np.array([np.nan]), 1)
    assert math.isnan(nothing.value)
    assert nothing.low is None


def test_sign_flips_by_hand() -> None:
    # 1 of 8 patterns reaches +6, one -6.
    assert sign_flip(np.array([1.0, 2.0, 3.0])) == 2 / 8
    assert sign_flip(np.array([1.0, -1.0])) == 1
    assert sign_flip(np.zeros(30)) == 1


def test_many_sign_flips_are_near_the_exact_ones() -> None:
    scipy = pytest.importorskip("scipy.stats", reason="the exact value is scipy's")
    differences = np.random.default_rng(0).normal(0.4, 1, size=40)
    theirs = scipy.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=20_000, rng=1
    ).pvalue
    assert sign_flip(differences) == pytest.approx(theirs, abs=0.01)


def test_comparisons_are_paired_and_seeded() -> None:
    base = np.random.default_rng(0).normal(0, 50, size=80)
    ours = compare_means(base + 1 + np.linspace(0, 0.1, 80), base)
    assert ours.difference == pytest.approx(1.05)
    assert ours.p_value < 0.001
    assert ours == compare_means(base + 1 + np.linspace(0, 0.1, 80), base)
    assert compare_means(base, base).p_value == 1
    assert compare_means(base, np.full(80, np.nan)).num_examples == 0


def test_corpus_comparison_of_equal_scores_is_not_significant() -> None:
    values = np.arange(20.0)

    def total(rows: object) -> float:
        return float(values.sum() if rows is None else values[rows].sum())  # type: ignore[index]

    assert compare_corpus(total, total, 20).p_value == 1
    better = compare_corpus(lambda rows: total(rows) + 1, total, 20)
    assert better.difference == 1
    assert better.p_value <= 0.002


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.6]) == [1.0, 1.0]
    assert holm([]) == []
