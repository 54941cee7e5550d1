"""`autograder drafts`: which lessons are drafts, and what each still lacks.

A lesson whose title cell carries the tag `draft` need not have the size of a finished lesson yet. It must meet every
other rule. `make check` prints one line for each draft.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from autograder.answers import right, wrong
from autograder.lesson import chapter, notebook

#: The tag of a draft's first cell.
DRAFT = "draft"


@dataclass(frozen=True)
class Size:
    """How much of something a lesson has, and how much a finished one has: from `least` to `most`."""

    what: str
    got: int
    least: int
    most: int | None = None

    @property
    def fits(self) -> bool:
        """Is it what a finished lesson has?"""
        return self.least <= self.got and (self.most is None or self.got <= self.most)

    def __str__(self) -> str:
        wanted = f"at least {self.least}" if self.most is None else f"{self.least} to {self.most}"
        return f"{self.what} {self.got} ({wanted})"


def is_draft(lesson: str) -> bool:
    """Does the lesson's title cell carry the tag `draft`?"""
    return DRAFT in notebook.read(lesson).cells[0].metadata.get("tags", [])


def sizes(lesson: str) -> list[Size]:
    """What a lesson has, next to what a finished one has."""
    cells = notebook.read(lesson).cells
    exercises = sum(notebook.nbgrader_role(cell) == "solution" for cell in cells)
    return [
        Size("cells", len(cells), 35, 60),
        Size("exercises", exercises, 3, 8 if lesson == "17_capstone" else 7),  # its extensions are exercises too
        Size("words in the chapter", chapter.words(lesson), 1800, 4200),
        Size("words in its core", chapter.core_words(lesson), 0, 2500),
        Size("known wrong answers", len(wrong.load_wrong(lesson)), 10),
        Size("other right answers", len(right.load_right(lesson)), 3),
    ]


def lines() -> list[str]:
    """One line for each draft."""
    return [line(lesson) for lesson in notebook.lessons() if is_draft(lesson)]


def line(lesson: str) -> str:
    """What a draft still lacks, or that it is finished."""
    lacks = [str(size) for size in sizes(lesson) if not size.fits]
    if lacks:
        return f"{lesson} is a draft: {', '.join(lacks)}"
    return f"{lesson} is a draft, but it has the size of a lesson: remove the tag {DRAFT} from its title cell"


def add_parser(subparsers: Any) -> None:
    """Add the subcommand `drafts`."""
    parser = subparsers.add_parser("drafts", help="which lessons are drafts, and what each still lacks")
    parser.set_defaults(run=command)


def command(_arguments: argparse.Namespace) -> int:
    """Run the subcommand; its exit status."""
    for text in lines():
        print(text)
    return 0
