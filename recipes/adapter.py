"""LoRA on SmolLM2: what the adapter recipes share. The loop itself is in `training.py`.

The loss is of the targets alone, and only their places go through the vocabulary projection. Right
padding needs no mask: a causal model never looks at what comes after.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from training import Encoded, Schedule, Trainer, padded, parser
from validation import print_scores

import bestk
from bestk.lm.loading import SMOLLM2_HUB
from bestk.lm.task_models import Card, end_prompts

# One sign ends prompts and texts: which end the base's own tokenizer has differs between versions
# of transformers.
END = "<|im_start|>"
RANK = 16


class Pair(NamedTuple):
    """What the model reads, and what it is to write."""

    prompt: str
    target: str


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One adapter: its name, its data, how it is trained."""

    name: str
    task: str  # the task of `bestk eval` whose plain prompts it reads
    validated_on: tuple[str, str]  # a task and its split, for the scores printed in the end
    pairs: Callable[[Path], list[Pair]]
    validation: Callable[[Path], list[Pair]]
    max_tokens: int  # longer pairs lose the end of their prompt
    schedule: Schedule


def main(recipe: Recipe) -> None:
    """Train the recipe's adapter with what the command line says."""
    options = parser(recipe.name, recipe.schedule).parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    tokenizer, model = _model(options.device)
    train = _encoded(tokenizer, recipe.pairs(options.data_dir), recipe.max_tokens)
    valid = _encoded(tokenizer, recipe.validation(options.data_dir), recipe.max_tokens)
    print(f"{recipe.name}: {len(train)} pairs to train on, {len(valid)} to validate", flush=True)
    schedule = dataclasses.replace(
        recipe.schedule, num_pairs=options.num_pairs, batch_size=options.batch_size
    )
    trainer = Trainer(model, lambda pairs: _loss(model, pairs), schedule, options.output)
    trainer.train(train, valid, options)
    card = Card(base="smollm2", prompt_end=END, text_end=END, task=recipe.task)
    write(model, options.output, card)
    trainer.finish()
    task, split = recipe.validated_on
    print_scores(options.output, task, split, options.data_dir, options.num_scored, options.device)


def lora(task_type: str, dropout: float = 0.0) -> Any:
    """Return the settings that all adapters have: every projection, one rank."""
    from peft import LoraConfig

    return LoraConfig(
        r=RANK,
        lora_alpha=2 * RANK,
        lora_dropout=dropout,
        target_modules="all-linear",
        task_type=task_type,
    )


def write(model: Any, folder: Path, card: Card) -> None:
    """Write the adapter in bfloat16 with its card; nothing in it names a place on this machine."""
    told = folder / "README.md"  # written by hand, if at all; peft puts a template there
    by_hand = told.read_bytes() if told.exists() else None
    model.to(torch.bfloat16).save_pretrained(folder)
    path = folder / "adapter_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["base_model_name_or_path"] = SMOLLM2_HUB
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if by_hand is None:
        told.unlink(missing_ok=True)
    else:
        told.write_bytes(by_hand)
    card.write(folder)


def _model(device: str) -> tuple[Any, Any]:
    from peft import get_peft_model

    # On a GPU the frozen weights need no more than bfloat16; peft keeps the adapter's in float32.
    dtype = "float32" if device == "cpu" else "bfloat16"
    lm: Any = bestk.load("smollm2", dtype=dtype, device=device)
    tokenizer = end_prompts(lm.tokenizer, END)
    return tokenizer, get_peft_model(lm.backend.network, lora("CAUSAL_LM"))


def _encoded(tokenizer: Any, pairs: Sequence[Pair], max_tokens: int) -> list[Encoded]:
    """Turn pairs into ids and the place where the target starts."""
    prompts = tokenizer([pair.prompt for pair in pairs])["input_ids"]
    targets = tokenizer([pair.target for pair in pairs], add_special_tokens=False)["input_ids"]
    end = tokenizer.convert_tokens_to_ids(END)
    found = []
    for prompt, target in zip(prompts, targets, strict=True):
        room = max_tokens - len(target) - 1
        kept = prompt if len(prompt) <= room else [*prompt[: room - 1], prompt[-1]]
        if room > 1:
            found.append(([*kept, *target, end], len(kept)))
    return found


def _loss(model: Any, pairs: Sequence[Encoded]) -> tuple[Tensor, int]:
    """Sum the loss of all targets of a few pairs."""
    base, device = model.get_base_model(), model.device
    tokens = padded([ids for ids, _ in pairs], 0, device)
    place = torch.arange(tokens.shape[1] - 1, device=device)
    first = torch.tensor([start - 1 for _, start in pairs], device=device)[:, None]
    last = torch.tensor([len(ids) - 1 for ids, _ in pairs], device=device)[:, None]
    is_target = (place >= first) & (place < last)
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        hidden = base.model(input_ids=tokens, use_cache=False).last_hidden_state
        logits = base.lm_head(hidden[:, :-1][is_target])
    wanted = tokens[:, 1:][is_target]
    loss = torch.nn.functional.cross_entropy(logits.float(), wanted, reduction="sum")
    return loss, len(wanted)
