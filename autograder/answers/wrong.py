"""Known wrong answers: the mistakes that people really make, each with the hint that helps.

`solutions/NN_topic/wrong.md` holds those of a lesson: a section for each answer cell, an entry for each mistake, the
subtle ones first::

    ## 08-ex2-gradient

    ### gradients_are_summed
    The reduce-scatter adds up the ranks' gradients; the step needs their mean. Adam hides a constant factor, but SGD
    takes steps that are N times too long.
    ```diff
    -            self.gradient /= world_size
    ```

The text is the hint. The block says what the mistake changes in the solution. It holds whole lines, as `diff -u` writes
them: `-` goes, `+` comes, and a blank in front marks what stays. Each place must be in the cell exactly once, so lines
that stay are needed around a line that occurs twice, and beside lines that only come. `@@` stands between two places.

A block of `python` is the whole cell. `### name from NAME` starts from the right answer NAME (`right`) in place of the
solution.

What an answer fails is not written here: `make audit` measures it, and compares it with what is recorded (`verdicts`).
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import NamedTuple

from autograder.answers import answer, right, verdicts
from autograder.answers.answer import Answer
from autograder.lesson import notebook


class Entry(NamedTuple):
    """A wrong answer as it is written. line: of its heading. start: of the first line of its block, of `kind`."""

    cell: str
    name: str
    base: str
    line: int
    hint: str
    kind: str
    start: int
    block: list[str]


class BadLineError(ValueError):
    """A line of `wrong.md`, by its number, that cannot be understood or does not fit."""

    def __init__(self, line: int, message: str):
        super().__init__(message)
        self.line = line


def load_wrong(lesson: str) -> list[Answer]:
    """The wrong answers of a lesson, in the order in which they are written; none if there is no such file.

    ValueError, in one line with file and line, for an entry that cannot be read or does not fit the solution.
    """
    files = [answer.folder(lesson) / name for name in ("wrong.md", "right.py", "verdicts.txt")]
    return _load(lesson, answer.state(*files, notebook.solution_path(lesson))) if files[0].is_file() else []


def of_exercise(exercise: str) -> list[Answer]:
    """The wrong answers that replace the answer cell `exercise`."""
    return [known for known in load_wrong(notebook.lesson_of(exercise)) if known.cell == exercise]


def entries(lesson: str) -> list[Entry]:
    """The entries of a lesson's `wrong.md`. ValueError as for `load_wrong`."""
    path = answer.folder(lesson) / "wrong.md"
    try:
        return parse(path.read_text(encoding="utf-8"))
    except BadLineError as error:
        raise ValueError(f"{path.relative_to(notebook.ROOT)}:{error.line}: {error}") from None


def parse(text: str) -> list[Entry]:
    """The entries of a text. BadLineError for the first line that is not as it should be."""
    lines = text.split("\n")
    found: list[Entry] = []
    names: set[str] = set()
    cell = name = base = ""
    hint: list[str] = []
    heading = number = 0
    while number < len(lines):
        line, number = lines[number], number + 1  # from here on, `number` counts from 1, as editors do
        if line.startswith("#"):
            if name:
                raise BadLineError(heading, f"{name} has no block: write its diff after the hint")
            section, entry = re.fullmatch(r"## (\S+)", line), re.fullmatch(r"### (\w+)(?: from (\w+))?", line)
            if section:
                cell = section[1]
            elif entry:
                name, base, hint, heading = entry[1], entry[2] or "", [], number
                if not cell:
                    raise BadLineError(number, f"{name} is in no section: write ## and the id of the answer cell above")
                if name in names:
                    raise BadLineError(number, f"there is another entry of the name {name}")
                names.add(name)
            elif number > 1:
                raise BadLineError(number, f"{line!r} is no heading: write ## CELL, ### name or ### name from NAME")
        elif line.startswith("```"):
            if not name:
                raise BadLineError(number, "a block of no entry: write ### and a name, and a hint, above it")
            if line not in ("```diff", "```python"):
                raise BadLineError(number, f"a block begins with ```diff or ```python, not with {line}")
            if not any(hint):
                raise BadLineError(heading, f"{name} has no hint: say what the student did and what follows from it")
            end = next((at for at in range(number, len(lines)) if lines[at].startswith("```")), -1)
            if lines[end] != "```":
                raise BadLineError(number, f"the block of {name} does not end: write ``` below it")
            text_of_hint = " ".join(" ".join(hint).split())
            found.append(Entry(cell, name, base, heading, text_of_hint, line[3:], number + 1, lines[number:end]))
            name, number = "", end + 1
        elif name:
            hint.append(line.strip())
        elif line.strip() and found:
            raise BadLineError(number, "a text of no entry: a hint stands between a name and its block")
    if name:
        raise BadLineError(heading, f"{name} has no block: write its diff after the hint")
    return found


def changed(source: str, diff: list[str], start: int = 1) -> str:
    """A source with a diff applied. start: the number of the diff's first line, for errors.

    BadLineError: a line that is none of a diff, a place that is not in the source exactly once, two that overlap.
    """
    lines, places = source.split("\n"), []
    while diff:
        length = diff.index("@@") if "@@" in diff else len(diff)
        place = [line or " " for line in diff[:length]]
        for number, line in enumerate(place, start):
            if line[0] not in " -+":
                raise BadLineError(number, f"{line!r} begins with neither a blank, nor -, nor +")
        old, new = ([line[1:] for line in place if line[0] in signs] for signs in (" -", " +"))
        if not old:
            raise BadLineError(start, "nothing says where these lines go: add a line that stays, a blank in front")
        found = [at for at in range(len(lines)) if lines[at : at + len(old)] == old]
        if len(found) != 1:
            where = f"the cell has {len(found)} such places, expected one: {old[0].strip()!r} …"
            apart = not found and all(line in lines for line in old)
            near = "its lines do not stand together in the cell: write a line @@ between two places"
            raise BadLineError(start, near if apart else where)
        places.append((found[0], old, new, start))
        diff, start = diff[length + 1 :], start + length + 1
    end = len(lines)
    for at, old, new, number in sorted(places, reverse=True):  # the last place first, so that the others stay put
        if at + len(old) > end:
            raise BadLineError(number, "this place overlaps with another one")
        lines[at : at + len(old)], end = new, at
    return "\n".join(lines)


@functools.cache
def _load(lesson: str, files: tuple[tuple[Path, int], ...]) -> list[Answer]:
    """The answers, read again when one of these files has changed."""
    path, recorded = files[0][0], verdicts.read(lesson)
    found = []
    for entry in entries(lesson):
        try:
            source = _source(lesson, entry)
            _refuse_what_is_no_python(source, entry)
        except BadLineError as error:
            raise ValueError(f"{path.relative_to(notebook.ROOT)}:{error.line}: {entry.name}: {error}") from None
        breaks, fails = recorded.get((entry.cell, entry.name), verdicts.NOT_RECORDED)
        found.append(Answer(entry.name, lesson, entry.cell, source, entry.hint, breaks, fails))
    return found


def _refuse_what_is_no_python(source: str, entry: Entry) -> None:
    """BadLineError for a source that does not parse: a mistake of whoever wrote the entry, not one of a student."""
    try:
        ast.parse(source)
    except SyntaxError as error:
        line = (error.text or "").strip()
        raise BadLineError(entry.line, f"with it the cell is no Python: {error.msg}: {line!r}") from None


def _source(lesson: str, entry: Entry) -> str:
    """The cell with the mistake in it."""
    cells = answer.solutions(lesson)
    if entry.cell not in cells:
        there = f"it has {', '.join(cells)} (a course leaves an exercise out in course.toml)"
        raise BadLineError(entry.line, f"{lesson} has no answer cell {entry.cell}; {there}")
    if entry.kind == "python":
        return "\n".join(entry.block) + "\n"
    if not entry.base:
        return changed(cells[entry.cell], entry.block, entry.start)
    known = {base.name: base.source for base in right.load_right(lesson) if base.cell == entry.cell}
    if entry.base not in known:
        raise BadLineError(entry.line, f"right.py has no answer {entry.base} to {entry.cell}")
    return changed(known[entry.base], entry.block, entry.start)
