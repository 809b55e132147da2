"""Forty prompts of a user, as a task: taglines, names, openings, explanations, emails.

    bestk eval recipes/chat.py --model smollm2 --max-new-tokens 64 -o out

There are no references: what is measured is how many different texts come, how many end by
themselves, how likely the model finds them, and what a judge says that is not the model. Texts that
were cut at the longest length are kept beside the complete ones.
"""

from __future__ import annotations

from bestk_eval.examples import Example
from bestk_eval.tasks import Task

PROMPTS: dict[str, tuple[str, ...]] = {
    "tagline": (
        "Write a tagline for a bakery.",
        "Write a slogan for a bicycle repair shop.",
        "Write a tagline for a podcast about the history of maps.",
        "Give me a slogan for a city library.",
        "Write a tagline for a tea that helps people sleep.",
        "Write one line that advertises a language school.",
        "Write a slogan for a campaign against food waste.",
        "Write a tagline for a small theatre.",
    ),
    "name": (
        "Give me a name for a grey cat and say why.",
        "Suggest a name for a coffee shop at a railway station.",
        "Invent a name for a board game about beekeeping.",
        "Suggest a name for a sailing boat and explain it.",
        "Give me a name for a band that plays only at weddings.",
        "Suggest a title for a cookbook of soups.",
        "Invent a name for a planet in a science fiction story.",
        "Suggest a name for a community garden.",
    ),
    "opening": (
        "Write the opening sentence of a mystery story.",
        "Write the first sentence of a novel set on a lighthouse island.",
        "Start a fairy tale about a river that forgot its way.",
        "Write the opening of a speech at a retirement party.",
        "Write the first two sentences of a travel essay about Lisbon.",
        "Begin a story in which nobody can lie for one day.",
        "Write an opening line for a talk about sleep.",
        "Write the first sentence of a letter to a future grandchild.",
    ),
    "explanation": (
        "Explain why the sky is blue.",
        "Explain to a child how bread rises.",
        "What is inflation, in simple words?",
        "Why do leaves change colour in autumn?",
        "Explain how a vaccine works.",
        "What does a compiler do?",
        "Explain the rules of chess to a beginner in a few sentences.",
        "Why do we have leap years?",
    ),
    "email": (
        "Write a short email that declines a meeting.",
        "Write an email that asks a landlord to repair the heating.",
        "Write a thank-you note after a job interview.",
        "Write an email to a colleague who is moving to another team.",
        "Write a polite reminder about an unpaid invoice.",
        "Invite the neighbours to a barbecue on Saturday.",
        "Write an apology to a customer whose parcel was late.",
        "Ask a professor for a letter of recommendation.",
    ),
}


def examples() -> list[Example]:
    """List the prompts, in turn one of every kind: the first five are one of each."""
    return [
        Example(id=f"{kind}-{turn + 1}", input=prompts[turn], references=(), fields={"kind": kind})
        for turn in range(len(PROMPTS["tagline"]))
        for kind, prompts in PROMPTS.items()
    ]


TASK = Task(
    name="chat",
    kind="text",
    plain="{input}",
    chat="{input}",
    max_new_tokens=64,
    keeps_cut=True,
    examples=examples,
)
