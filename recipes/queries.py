r"""Questions to a table in SQL, as a task: right or wrong is a database's word.

    bestk eval recipes/queries.py --model smollm2 --style plain --beam-size 100 \
        --methods BKS_diverse:stop_ids=198 -o out
    python recipes/queries.py out

Right is a query that returns, on two tables of different rows, what the right query returns, in any
order.
"""

from __future__ import annotations

import functools
import random
import sqlite3
from collections.abc import Sequence

from bestk_eval.examples import Example
from bestk_eval.tasks import Task

_CITIES, _JOBS = ("Rome", "Oslo", "Lima", "Cairo"), ("cook", "nurse", "pilot", "judge")
_NAMES = ("Ann", "Bo", "Cy", "Dee", "Eli", "Fay", "Gus", "Hal", "Ida", "Jo", "Kim", "Lee")
# A question with the query that answers it; {n} an age, {c} a city, {j} a job.
_FORMS: tuple[tuple[str, str], ...] = (
    ("names of people older than {n}", "SELECT name FROM people WHERE age > {n}"),
    ("names of people in {c}", "SELECT name FROM people WHERE city = '{c}'"),
    ("how many people live in {c}", "SELECT COUNT(*) FROM people WHERE city = '{c}'"),
    ("highest age", "SELECT MAX(age) FROM people"),
    ("ages of all people in {c}", "SELECT age FROM people WHERE city = '{c}'"),
    ("cities with a {j}", "SELECT DISTINCT city FROM people WHERE job = '{j}'"),
    ("average age in {c}", "SELECT AVG(age) FROM people WHERE city = '{c}'"),
    (
        "names of people in {c} younger than {n}",
        "SELECT name FROM people WHERE city = '{c}' AND age < {n}",
    ),
    ("number of people for each city", "SELECT city, COUNT(*) FROM people GROUP BY city"),
    ("name of the oldest person", "SELECT name FROM people ORDER BY age DESC LIMIT 1"),
    ("people not in {c}, by name", "SELECT name FROM people WHERE city != '{c}'"),
    ("how many different jobs", "SELECT COUNT(DISTINCT job) FROM people"),
)
_PROMPT = (
    "Table people(name, age, city, job). Write a query in SQL.\n\n"
    "names of all people: SELECT name FROM people\n"
    "how many people: SELECT COUNT(*) FROM people\n"
    "jobs of people in Paris: SELECT job FROM people WHERE city = 'Paris'\n"
    "names of cooks over 30: SELECT name FROM people WHERE job = 'cook' AND age > 30\n"
    "lowest age for each job: SELECT job, MIN(age) FROM people GROUP BY job\n"
    "{input}:"
)
NUM_EXAMPLES = 60
_STEPS = 100_000  # of the database's machine that a query may take


def asked(number: int) -> tuple[str, str]:
    """Return a question and the query that answers it; always the same."""
    source = random.Random(number)
    question, query = _FORMS[number % len(_FORMS)]
    filled = {"n": source.randrange(22, 60), "c": source.choice(_CITIES), "j": source.choice(_JOBS)}
    return question.format(**filled), query.format(**filled)


@functools.cache
def tables() -> tuple[sqlite3.Connection, ...]:
    """Make the two tables."""
    made = []
    for seed in (1, 2):
        source = random.Random(seed)
        rows = [
            (name, age, source.choice(_CITIES), source.choice(_JOBS))
            for name, age in zip(_NAMES, source.sample(range(20, 65), len(_NAMES)), strict=True)
        ]
        table = sqlite3.connect(":memory:")
        table.execute("CREATE TABLE people(name TEXT, age INTEGER, city TEXT, job TEXT)")
        table.executemany("INSERT INTO people VALUES (?, ?, ?, ?)", rows)
        table.commit()
        table.execute("PRAGMA query_only = ON")
        made.append(table)
    return tuple(made)


@functools.lru_cache(maxsize=100_000)
def answers(query: str) -> tuple[Sequence[str], ...] | None:
    """Return what a query gives on every table; None where it is none."""
    if not query.strip().lower().startswith("select"):
        return None
    found = []
    for table in tables():
        table.set_progress_handler(lambda: 1, _STEPS)
        try:
            found.append(sorted(map(repr, table.execute(query.strip()).fetchmany(1000))))
        except (sqlite3.Error, sqlite3.Warning, ValueError):
            return None
    return tuple(found)


def is_right(example: Example, text: str) -> bool:
    """Return whether a query answers as the right one does."""
    found = answers(text.strip())
    return found is not None and found == answers(asked(int(example.id))[1])


def examples() -> list[Example]:
    """List the questions."""
    return [Example(id=str(n), input=asked(n)[0], references=()) for n in range(NUM_EXAMPLES)]


TASK = Task(
    name="queries", kind="text", plain=_PROMPT, chat=_PROMPT, max_new_tokens=24, examples=examples
)

if __name__ == "__main__":
    from covered import main

    main(is_right, "Coverage of queries in SQL.")
