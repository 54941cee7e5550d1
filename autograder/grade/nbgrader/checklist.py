"""What the grader checks: a folded list under each exercise of a released notebook, made from the checks themselves.

The first line of a check's docstring says in one sentence which property it tries. So whatever is graded is listed, and
whatever is listed is graded.
"""

from __future__ import annotations

import re

from autograder import properties
from autograder.lesson.notebook import answer_of


def statement_of(test: str) -> str:
    """The cell with the statement that a test belongs to: `08-ex3` for `08-ex3-step-test`."""
    return re.sub(r"^(\d+-ex\d+)-.*", r"\1", answer_of(test))


def lines_of(sentences: dict[str, str], found: list[properties.Property], all_or_nothing: bool = False) -> list[str]:
    """The sentences by check, each with what it is worth, if there are several; the core comes first.

    all_or_nothing: without the core, the others earn nothing.
    """
    if len(sentences) == 1:
        return list(sentences.values())
    core, *others = found
    alone = ", the core, without which the rest earns nothing" if all_or_nothing else ""
    return [
        f"{points(core.points)}{alone}: {sentences[core.name]}",
        *(f"{points(one.points) if one.points else 'No points without this'}: {sentences[one.name]}"
          for one in others if one.name != properties.VISIBLE),
    ]  # fmt: skip


def points(number: float) -> str:
    """A number of points, in words: "1 point", "0.5 points"."""
    return f"{number:g} point{'' if number == 1 else 's'}"


def folded(sentences: list[str]) -> str:
    """A Markdown list that opens with a click."""
    items = "\n".join(f"- {sentence}" for sentence in sentences)
    return f"<details><summary>What the grader checks</summary>\n\n{items}\n\n</details>"
