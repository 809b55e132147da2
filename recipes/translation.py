"""multi30k-en-de and multi30k-en-fr: small translation models, from scratch, on image captions.

    python recipes/translation.py --data-dir data --target de

Reads multi30k/train and multi30k/val. An mBART (layer norms first) of five million parameters, as
many as 12 MB hold in bfloat16, with a vocabulary of its own for both languages.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from training import Encoded, Schedule, Trainer, padded, parser
from validation import print_scores

from bestk_eval.tasks.reading import read_jsonl

VOCABULARY = 6000
PAD, START, END, UNKNOWN = "<pad>", "<s>", "</s>", "<unk>"
MAX_TOKENS = 96
SCHEDULE = Schedule(
    num_pairs=29_000 * 40, batch_size=256, learning_rate=2e-3, weight_decay=0.01, warm_up=0.08
)
LABEL_SMOOTHING = 0.1


def main() -> None:
    """Train a model into one of the two languages."""
    target = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    target.add_argument("--target", choices=("de", "fr"), default="de")
    # First alone: the default of --output has it in its name.
    name = f"multi30k-en-{target.parse_known_args()[0].target}"
    options = parser(name, SCHEDULE, target).parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    train = _pairs(options.data_dir, "train", options.target)
    valid = _pairs(options.data_dir, "val", options.target)
    tokenizer = _tokenizer([text for pair in train for text in pair])
    model = _model(tokenizer).to(options.device)
    size = sum(weight.numel() for weight in model.parameters())
    print(f"{len(train)} pairs, {size / 1e6:.1f} million parameters", flush=True)
    schedule = dataclasses.replace(
        SCHEDULE, num_pairs=options.num_pairs, batch_size=options.batch_size
    )
    trainer = Trainer(model, lambda pairs: _loss(model, pairs), schedule, options.output)
    trainer.train(_encoded(tokenizer, train), _encoded(tokenizer, valid), options)
    model.to(torch.bfloat16).save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)
    trainer.finish()
    print_scores(options.output, name, "val", options.data_dir, options.num_scored, options.device)


def _pairs(folder: Path, split: str, target: str) -> list[tuple[str, str]]:
    (path,) = (folder / "multi30k").glob(f"{split}.jsonl*")
    return [(record["en"].strip(), record[target].strip()) for _, record in read_jsonl(path)]


def _tokenizer(texts: Sequence[str]) -> Any:
    """Learn a vocabulary of byte pairs; every source ends with `</s>`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE(unk_token=UNKNOWN))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    special = [PAD, START, END, UNKNOWN]
    made.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, show_progress=False),
    )
    made.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, special.index(END))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token=PAD,
        bos_token=START,
        eos_token=END,
        unk_token=UNKNOWN,
        model_max_length=MAX_TOKENS,
    )


def _model(tokenizer: Any) -> Any:
    from transformers import MBartConfig, MBartForConditionalGeneration

    pad, start, end = (tokenizer.convert_tokens_to_ids(token) for token in (PAD, START, END))
    model = MBartForConditionalGeneration(
        MBartConfig(
            vocab_size=len(tokenizer),
            d_model=256,
            encoder_layers=3,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=768,
            decoder_ffn_dim=768,
            max_position_embeddings=MAX_TOKENS,
            dropout=0.3,
            # Words and positions start equally large: with scaled embeddings positions drown, and
            # the decoder never learns to look at its source.
            scale_embedding=False,
            init_std=0.06,
            pad_token_id=pad,
            bos_token_id=start,
            eos_token_id=end,
            decoder_start_token_id=start,
            forced_eos_token_id=None,
        )
    )
    model.generation_config.forced_eos_token_id = None
    return model


def _encoded(tokenizer: Any, pairs: Sequence[tuple[str, str]]) -> list[Encoded]:
    sources = tokenizer([source for source, _ in pairs])["input_ids"]
    targets = tokenizer([target for _, target in pairs])["input_ids"]
    return [
        (source[:MAX_TOKENS], target[:MAX_TOKENS])
        for source, target in zip(sources, targets, strict=True)
    ]


def _loss(model: Any, pairs: Sequence[Encoded]) -> tuple[Tensor, int]:
    """Sum the loss of all targets, smoothed while the model is in training."""
    config, device = model.config, model.device
    source = padded([ids for ids, _ in pairs], config.pad_token_id, device)
    target = padded([ids for _, ids in pairs], -100, device)
    before = target.roll(1, dims=1).masked_fill(target.roll(1, dims=1) < 0, config.pad_token_id)
    before[:, 0] = config.decoder_start_token_id
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        logits = model(
            input_ids=source,
            attention_mask=(source != config.pad_token_id).long(),
            decoder_input_ids=before,
            use_cache=False,
        ).logits
    loss = torch.nn.functional.cross_entropy(
        logits.float().flatten(0, 1),
        target.flatten(),
        reduction="sum",
        label_smoothing=LABEL_SMOOTHING if model.training else 0.0,
    )
    return loss, int((target >= 0).sum())


if __name__ == "__main__":
    main()
