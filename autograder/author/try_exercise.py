"""`autograder try 02-ex7`: everything that can be wrong with one exercise, in seconds.

It brings the lesson's released notebook up to date; looks at the style of the lesson's files and at the rules of all
lessons, as far as they concern the exercise; tries its known wrong and right answers, as `audit` does; and grades its
solution and a wrong answer in the jail, as a class is graded.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat

from autograder import checks, properties
from autograder.answers import answer, right, wrong
from autograder.answers.answer import Answer
from autograder.audit import audit, matrix
from autograder.author import rules, where
from autograder.author.where import Exercise
from autograder.checks.check import share_inputs
from autograder.grade import isolation, outcome, retry
from autograder.grade.course import Course
from autograder.grade.nbgrader import release
from autograder.lesson import notebook


def add_parser(subparsers: Any) -> None:
    """Add the subcommand `try`."""
    parser = subparsers.add_parser("try", help="release, style, audit and jail of one exercise, in seconds")
    parser.add_argument("exercise", metavar="NN-exN", help="as in 08-ex3, or in full, as in 08-ex3-step")
    parser.add_argument("--record", action="store_true", help="write what its wrong answers fail into verdicts.txt")
    parser.set_defaults(run=command)


def command(arguments: argparse.Namespace) -> int:
    """Run the subcommand; its exit status."""
    exercise = where.find(arguments.exercise)
    # What cannot be read, and a check that nothing calls, is a ValueError.
    wrong.load_wrong(exercise.lesson), right.load_right(exercise.lesson)
    checks.refuse_checks_of_nothing(exercise.lesson)
    properties.command(argparse.Namespace(lessons=[exercise.lesson]))
    for line in release.release([exercise.lesson]):
        print(line)
    if arguments.record:
        todo = [(exercise.lesson, exercise.cell)]
        audit.record(todo, audit.audit(todo, jobs=1), jobs=1)
    count = 0
    for part in (style, audited, jailed):
        problems = list(part(exercise))
        print(
            "\n".join(
                [f"{part.__name__}:{'' if problems else ' good'}", *(textwrap.indent(line, "  ") for line in problems)]
            )
        )
        count += len(problems)
    print("checks:", *checks_of(exercise), sep="\n")
    said, seconds = f"{count or 'no'} problem{'' if count == 1 else 's'}", sum(os.times()[:4])
    print(f"{exercise.short}: {said}; {seconds:.1f} s of processor time")
    return 1 if count else 0


def style(exercise: Exercise) -> Iterator[str]:
    """What ruff says of the lesson's files, and the rules of all lessons that concern the exercise."""
    folder = answer.folder(exercise.lesson)
    paths = [notebook.solution_path(exercise.lesson), folder / "right.py", *notebook.checks_of(exercise.lesson)]
    places = [str(path.relative_to(notebook.ROOT)) for path in paths]
    for how in (["check"], ["format", "--check", "--force-exclude"]):
        ruff = [str(Path(sys.executable).with_name("ruff")), *how, "--output-format", "concise", *places]
        done = subprocess.run(ruff, cwd=notebook.ROOT, capture_output=True, text=True)
        found = [line for line in done.stdout.splitlines() if re.match(r"\S+?:(\d+:|cell)", line)]
        if done.returncode == 2 and not found:
            raise ValueError(f"ruff does not run: {(done.stderr or done.stdout).strip()}")
        yield from (
            re.sub(r"(\S+?):\d+:\d+: unformatted:.*", r"\1: not in the usual form: ruff format \1", one)
            for one in found
        )
    chapter = notebook.ROOT / "book" / f"{exercise.lesson}.md"
    for path in [*paths[1:], folder / "wrong.md", *([chapter] if chapter.is_file() else [])]:
        yield from rules.stray_spaces(path)
    yield from (line for line in rules.lesson_problems(exercise.lesson) if concerns(line, exercise))


def concerns(line: str, exercise: Exercise) -> bool:
    """Is this line on the exercise, or on no exercise by name?"""
    named = set(re.findall(r"\b\d\d-ex\d+", line))
    return not named or exercise.short in named


def audited(exercise: Exercise) -> Iterator[str]:
    """What is wrong with the grading of its known answers, and the checks that no wrong answer fails alone."""
    share_inputs()
    verdicts = audit.try_batch(exercise.lesson, exercise.cell)
    if faults := dict.fromkeys(fault for verdict in verdicts for fault in verdict.faults):
        yield from faults  # all else may follow from these
        return
    unrecorded = False
    for verdict in verdicts:
        said = list(verdict.problems)
        if said and said[0].startswith(audit.UNRECORDED):  # `style` says what to do
            unrecorded, said = True, said[2:]
        yield from (f"{verdict.case.kind} answer {verdict.case.name}: {line}" for line in said)
    if unrecorded:  # else each check seems to be one that nothing fails
        return
    own = {row.check for row in _rows(exercise)}
    yield from (line for line in matrix.problems(exercise.lesson) if line.split(":")[0] in own)


def jailed(exercise: Exercise) -> Iterator[str]:
    """What is wrong with the grades of the solution and of the first wrong answer where students are graded."""
    try:
        isolation.refuse()
    except ValueError as error:
        yield str(error)
        return
    test, known = f"{exercise.cell}-test", wrong.of_exercise(exercise.cell)[:1]
    with tempfile.TemporaryDirectory(prefix="try-") as folder:
        course = Course(Path(folder))
        _, why = retry.run_again(course, "", exercise.lesson, test)
        if why:
            yield f"the solution loses marks: {why}"
        for one in known:
            _hand_in(course, one)
            cell, why = retry.run_again(course, "wrong", exercise.lesson, test)
            hints = {hint.name for tried in outcome.of_metadata(cell).lost for hint in tried.reason.hints}
            if not why:
                yield f"wrong answer {one.name} keeps its marks"
            elif one.name not in hints:
                yield f"wrong answer {one.name} does not show its hint, it says: {why}"


def _hand_in(course: Course, one: Answer) -> None:
    """Put the lesson's solution with this answer where the course expects the submission of a student, `wrong`."""
    nb = nbformat.read(notebook.NOTEBOOKS / one.lesson / f"{one.lesson}.ipynb", as_version=4)
    answers = {**answer.solutions(one.lesson), one.cell: one.source}
    for cell in nb.cells:
        cell.source = answers.get(cell.id, cell.source)
    path = course.root / "submitted" / "wrong" / one.lesson / f"{one.lesson}.ipynb"
    path.parent.mkdir(parents=True)
    nbformat.write(nb, path)


def checks_of(exercise: Exercise) -> list[str]:
    """A line for each check: what it is worth, and how many of the wrong answers fail it, and it alone."""
    recorded = all(one.breaks for one in wrong.of_exercise(exercise.cell))
    return [
        f"  {row.check}, {row.weight}{' points' * (row.weight != matrix.VETO)}: "
        f"{f'{len(row.failing)} wrong answers fail it, {len(row.alone)} alone' if recorded else 'not recorded'}"
        for row in _rows(exercise)
    ]


def _rows(exercise: Exercise) -> list[matrix.Row]:
    return [row for row in matrix.matrix_rows(exercise.lesson) if row.exercise == exercise.cell]
