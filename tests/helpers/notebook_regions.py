"""What of a lesson's notebook a student sees, and what stands between the marks of answers and hidden tests."""

from __future__ import annotations

import functools
import re

from autograder.lesson import notebook


@functools.cache
def split(lesson: str, *regions: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(hidden, shown): a lesson's lines inside of `regions` ("SOLUTION", "HIDDEN TESTS") and outside, stripped."""
    mark = re.compile(rf"\s*### (BEGIN|END) ({'|'.join(regions)})")
    hidden: list[str] = []
    shown: list[str] = []
    for cell in notebook.read(lesson).cells:
        inside = False
        for line in cell.source.splitlines():
            if found := mark.match(line):
                inside = found[1] == "BEGIN"
            else:
                (hidden if inside else shown).append(line.strip())
    return tuple(hidden), tuple(shown)
