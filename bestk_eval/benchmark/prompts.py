"""Prompts to measure with: windows of a text that comes with bestk, or random token ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bestk.errors import ModelError
from bestk_eval.benchmark.report import BenchSettings

if TYPE_CHECKING:
    from bestk import LanguageModel

TEXT = """
The harbour wakes before the town does. Long before the first bus climbs the hill, men in yellow
coats walk along the quay and read the water as other people read a newspaper. They know from the
colour of the swell whether the boats will go out, and from the cry of the gulls whether it was
worth going. A woman unlocks the ice house and lets the cold roll over the stones. Somebody lights
a stove, somebody else swears at an engine, and the smell of coffee and diesel settles over the
nets. By six the boats have gone, and for an hour the harbour belongs to children who should be
asleep. They run from post to post and count the crabs that the fishermen left in a bucket. The
eldest of them, a girl with a torn sleeve, can name every boat by the sound that it makes, and she
has been wrong only once, when the Marigold came home with a borrowed motor. At seven the bell of
the school ends all that. The quay is empty again but for the cats, which have waited politely for
their turn. In the afternoon the market opens under the old iron roof. Prices are shouted, doubted
and shouted again. The cook of the small hotel walks past every stall twice before she buys
anything, for she holds that the first look is for the fish and the second for the seller. A
tourist photographs a lobster. An old man explains to nobody in particular that the lobsters were
larger before the war, and that the war was larger too. When the tide turns, the light turns with
it, from silver to brass, and the first lanterns answer from beyond the breakwater. One after
another the boats come in, low in the water if the day was kind, and the girl with the torn sleeve
stands on the last post and calls out their names. Nobody has asked her to. But the wives in the
kitchens on the hill have opened their windows, and when they hear a name they put the pot on the
fire. In winter, when the boats stay in, she practises with her eyes closed and her back to the
water, while her grandfather walks along the quay and knocks on one hull after another with his
stick. She has learnt to tell oak from larch by the knock alone, and new paint from old. He says
that a harbour is a kind of school, only that here the weather asks the questions, and that nobody
who has answered wrongly was ever given the same question twice. On the evening of the storm she
called eleven names, and then she stood for a long time and said nothing, because there
"""


def make_prompts(lm: LanguageModel, settings: BenchSettings) -> list[list[int]]:
    """Return token ids for every prompt of the batch: all of one length, all different.

    They are windows of the built-in text, taken round and round; random ids where the model has no
    tokenizer; or the one prompt given, as often as asked.
    """
    if not lm.reads_text:
        raise ModelError(f"bench needs a model that reads text, got {lm.name}")
    length = settings.prompt_tokens
    if settings.prompt is not None:
        prompts = [lm.encode(settings.prompt)] * settings.batch
    elif lm.tokenizer is None:
        import torch

        source, size = torch.Generator().manual_seed(settings.seed), lm.backend.vocab_size
        least = min(5, size - 1)  # the first few ids tend to be special ones
        shape = settings.batch, length
        prompts = torch.randint(least, size, shape, generator=source).tolist()
    else:
        text = lm.encode(TEXT.replace("\n", " ").strip())
        starts = [-length - 17 * number for number in range(settings.batch)]
        prompts = [[text[(start + i) % len(text)] for i in range(length)] for start in starts]
    lm.check_length(prompts[0], settings.max_new_tokens)
    return prompts
