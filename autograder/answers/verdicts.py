"""What each known wrong answer of a lesson fails, as the audit measured and recorded it: `verdicts.txt`.

A line for each answer: its name; the checks of its own exercise that it fails, or `core` for the core, behind which no
others were tried; and after `>` the other exercises that lose marks with it::

    08-ex2-gradient
      every_call_reduces: gradient_is_reduced_once > 08-ex4-clip

When a check changes, this file shows in a diff what it catches now. `make audit LESSONS=08-ex2 RECORD=1` writes what is
said of an exercise, `LESSONS=08` of a lesson.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from autograder.answers import answer
from autograder.lesson import notebook


class Losses(NamedTuple):
    """The test cells that lose marks, its own first; the checks of its own exercise that fail, none for `core`."""

    breaks: tuple[str, ...]
    fails: tuple[str, ...]


NOT_RECORDED = Losses((), ())

#: (cell, name of the answer) → what it loses.
Verdicts = Mapping[tuple[str, str], Losses]


def read(lesson: str) -> dict[tuple[str, str], Losses]:
    """The verdicts of a lesson; none if there is no file. ValueError, with file and line, for a line that is none."""
    path, cell = answer.folder(lesson) / "verdicts.txt", ""
    found: dict[tuple[str, str], Losses] = {}
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    for number, line in enumerate(lines, start=1):
        entry = re.fullmatch(r"  (\w+): ([\w ]+?)(?: > ([\w -]+))?", line)
        if entry and cell:
            fails = () if entry[2] == "core" else tuple(entry[2].split())
            breaks = [cell, *(entry[3] or "").split()]
            found[cell, entry[1]] = Losses(tuple(f"{exercise}-test" for exercise in breaks), fails)
        elif re.fullmatch(r"[\w-]+", line):
            cell = line
        else:
            place = f"{path.relative_to(notebook.ROOT)}:{number}"
            raise ValueError(f"{place}: {line!r} is no verdict: remove the line; then {to_record(cell or lesson)}")
    return found


def to_record(cell: str) -> str:
    """The command that records what the wrong answers to the exercise of a cell fail, or all those to a lesson."""
    exercise = re.match(r"\d\d(-ex\d+)?", cell)
    return f"make audit LESSONS={exercise[0] if exercise else cell} RECORD=1"


def text(verdicts: Verdicts) -> str:
    """The file's text."""
    lines: list[str] = []
    for cell, name in verdicts:
        if cell not in lines:
            lines.append(cell)
        lines.append(line(cell, name, verdicts[cell, name]))
    return "".join(f"{one}\n" for one in lines)


def line(cell: str, name: str, losses: Losses) -> str:
    """The line of one answer."""
    others = " ".join(test.removesuffix("-test") for test in losses.breaks if test != f"{cell}-test")
    return f"  {name}: {' '.join(losses.fails) or 'core'}{' > ' if others else ''}{others}"
