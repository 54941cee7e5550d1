"""`python -m autograder audit`: is the grading itself right?

Four claims are tested for each lesson: the solution gets full marks; the unedited student notebook gets none; every
known wrong answer loses marks in exactly the grade cells that it says it breaks, in its own exercise by exactly the
checks that it says it fails, and the message shows its hint; every other known right answer keeps full marks. A grade
cell that does not depend on the cell that an answer replaces is not run again for that answer: the solution has shown
its outcome. Each process of an audit draws its inputs once, and every audit draws new ones (`check.share_inputs`).
"""

from __future__ import annotations

import argparse
import concurrent.futures
import copy
import json
import multiprocessing
import re
import sys
from dataclasses import dataclass

import nbformat

from autograder.checking import hints
from autograder.checking.check import share_inputs
from autograder.lessons import keys, notebook
from autograder.lessons.files import write_whole
from autograder.soundness import matrix

#: Where the cases that have held are recorded, one file per exercise.
VERDICTS = notebook.ROOT / "_build" / "audit"

_SOLUTION = re.compile(r"^([ \t]*)### BEGIN SOLUTION.*?### END SOLUTION *$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Case:
    """One notebook to grade: a lesson, with one cell swapped in the mutants and variants."""

    lesson: str
    kind: str  # "solution", "unedited", "mutant" or "variant"
    name: str = ""


@dataclass(frozen=True)
class Verdict:
    """What is wrong with the grading of a case, in one sentence each; a case without complaints holds."""

    case: Case
    complaints: tuple[str, ...]


def cases(lesson: str) -> list[Case]:
    """All cases of one lesson."""
    from autograder.answers import mutants, variants

    return [
        Case(lesson, "solution"),
        Case(lesson, "unedited"),
        *(Case(lesson, "mutant", mutant.name) for mutant in mutants.of_lesson(lesson)),
        *(Case(lesson, "variant", variant.name) for variant in variants.of_lesson(lesson)),
    ]


def examine(case: Case, thorough: bool = True) -> Verdict:
    """Grade one case in this process and compare the outcome with the claim.

    thorough: for an answer, run all grade cells that depend on it, to see that it breaks exactly those that it names.
    Otherwise only the test of its own exercise runs, and a wrong answer's hint is searched for in itself alone.
    """
    from autograder.answers import mutants, variants

    nb = notebook.read(case.lesson)
    if case.kind in ("solution", "unedited"):
        nb = unedited(nb) if case.kind == "unedited" else nb
        outcome = notebook.grade(nb)
        should_fail = set(outcome.max_points) if case.kind == "unedited" else set()
        return Verdict(case, tuple(_differences(outcome, should_fail)))
    answers = (mutants if case.kind == "mutant" else variants).of_lesson(case.lesson)
    answer = next(answer for answer in answers if answer.name == case.name)
    own_test = f"{answer.cell}-test"
    should_fail = set(answer.breaks)
    only = notebook.dependents(nb, answer.cell)
    if not thorough:
        should_fail, only = should_fail & {own_test}, {own_test}
    with hints.only_for(answer.cell, None if thorough else answer.name):
        outcome = notebook.grade(nb, {answer.cell: answer.source}, only=only)
    complaints = _differences(outcome, should_fail)
    if answer.breaks and own_test in outcome.failed:
        complaints += matrix.differences(nb, answer, outcome.broken[own_test])
    if answer.breaks and own_test in outcome.failed and answer.hint not in outcome.messages[own_test]:
        complaints.append(f"{own_test} does not show the hint, it says: {outcome.messages[own_test]}")
    if not answer.hint:  # "" would be in every message
        complaints.append("its hint is empty: say what the student did and what follows from it")
    return Verdict(case, tuple(complaints))


def unedited(nb: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The student's notebook as released, with the hidden tests put back as grading does."""
    nb = copy.deepcopy(nb)
    for cell in nb.cells:
        cell.source = _SOLUTION.sub(r"\1raise NotImplementedError", cell.source)
    return nb


def _differences(outcome: notebook.Outcome, should_fail: set[str]) -> list[str]:
    kept = [f"{cell} kept its marks" for cell in sorted(should_fail - outcome.failed)]
    lost = sorted(outcome.failed - should_fail)
    return [*kept, *(f"{cell} lost its marks: {outcome.messages[cell]}" for cell in lost)]


def batches(lesson: str) -> dict[str, list[Case]]:
    """A lesson's cases, grouped: the known answers to each exercise, the solution, the notebook as released.

    One process tries a batch, so that it runs an exercise's known wrong answers once for all their hints.
    """
    from autograder.answers import mutants, variants

    exercise = {("mutant", answer.name): answer.cell for answer in mutants.of_lesson(lesson)}
    exercise |= {("variant", answer.name): answer.cell for answer in variants.of_lesson(lesson)}
    found: dict[str, list[Case]] = {}
    for case in cases(lesson):
        found.setdefault(exercise.get((case.kind, case.name), case.kind), []).append(case)
    return found


def try_batch(
    lesson: str, name: str, thorough: bool = True, most: int | None = None, force: bool = False
) -> list[Verdict]:
    """The verdicts on a batch. A case that has held with the same code is not tried again, unless `force` is set.

    most: try at most this many known wrong answers to an exercise (the subtle ones come first), and one right one.
    """
    of_batch = batches(lesson)[name]
    if most is not None:
        wrong, right = ([case for case in of_batch if (case.kind == "variant") == v] for v in (False, True))
        of_batch = wrong[:most] + right[:1]
    held, verdicts = Held(lesson, name), []
    for case in of_batch:
        if not force and held.covers(case, thorough):
            verdicts.append(Verdict(case, ()))
            continue
        verdicts.append(examine(case, thorough))
        if not verdicts[-1].complaints:
            held.add(case, thorough)
    return verdicts


class Held:
    """The cases of a batch that have held with the code as it is now, in a file; any change of the code voids it."""

    def __init__(self, lesson: str, batch: str):
        self.path = VERDICTS / lesson / f"{batch}.json"
        self.key = keys.of_lesson(lesson, more=keys.SOUNDNESS)
        self.cases = self._read()

    def covers(self, case: Case, thorough: bool) -> bool:
        """Has this case held when it was tried at least this thoroughly?"""
        return self.cases.get(f"{case.kind} {case.name}") in (True, thorough)

    def add(self, case: Case, thorough: bool) -> None:
        """Record that a case has held."""
        name = f"{case.kind} {case.name}"
        self.cases[name] = thorough or self.cases.get(name, False)
        write_whole(self.path, json.dumps({"key": self.key, "cases": self.cases}, indent=1))

    def _read(self) -> dict[str, bool]:
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            return dict(kept["cases"]) if kept["key"] == self.key else {}
        except (OSError, ValueError, LookupError, TypeError):
            return {}


def named(names: list[str]) -> list[tuple[str, str]]:
    """The batches of these lessons ("03_step", "03") and exercises ("08-ex3", "08-ex3-step"); all, if none is named.

    UnknownLessonError for a name that is neither.
    """
    exercises = [name for name in names if re.match(r"\d\d-ex\d", name)]
    lessons = [name for name in names if name not in exercises]
    found = [
        (lesson, batch) for lesson in notebook.pick(lessons) if lessons or not exercises for batch in batches(lesson)
    ]
    for name in exercises:
        lesson = notebook.lesson_of(name)
        of_exercise = [(lesson, batch) for batch in batches(lesson) if f"{batch}-".startswith(f"{name}-")]
        if not of_exercise:
            known = ", ".join(batch for batch in batches(lesson) if "-ex" in batch)
            raise notebook.UnknownLessonError(f"no exercise {name!r}; there are: {known}")
        found += of_exercise
    return list(dict.fromkeys(found))


def audit(todo: list[tuple[str, str]], jobs: int = 2, thorough: bool = True, force: bool = False) -> list[Verdict]:
    """Examine the cases of these batches (lesson, name), `jobs` batches at a time. Each worker loads torch once."""
    from tqdm import tqdm

    size = {(lesson, name): len(batches(lesson)[name]) for lesson, name in todo}
    todo = sorted(todo, key=lambda batch: -size[batch])  # long ones first, so that all workers end together
    total = sum(size.values())
    lessons = sorted({lesson for lesson, _ in todo})
    verdicts: list[Verdict] = []
    context = multiprocessing.get_context("spawn")
    with (
        concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context, initializer=share_inputs) as pool,
        tqdm(total=total, desc="audit", unit="case", disable=not sys.stderr.isatty()) as bar,
    ):
        running = [pool.submit(try_batch, *batch, thorough, None, force) for batch in todo]
        for done in concurrent.futures.as_completed(running):
            verdicts += done.result()
            bar.update(len(done.result()))
    order = {case: place for place, case in enumerate(case for lesson in lessons for case in cases(lesson))}
    return sorted(verdicts, key=lambda verdict: order[verdict.case])


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """`audit [LESSON or EXERCISE…] [--jobs N]`."""
    parser = subparsers.add_parser("audit", help="grade all known wrong and right answers, to test the checks")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="a lesson (08_zero1) or an exercise (08-ex3); default: all"
    )
    parser.add_argument("--jobs", type=int, default=2, help="batches graded at once (default: 2)")
    parser.add_argument("--force", action="store_true", help="try even the cases that have held with the same code")
    parser.set_defaults(run=_main)


def _main(arguments: argparse.Namespace) -> int:
    todo = named(arguments.names)
    verdicts = audit(todo, arguments.jobs, force=arguments.force)
    lessons = list(dict.fromkeys(lesson for lesson, _ in todo))
    _print_matrix(lessons, verdicts)
    wrong = [verdict for verdict in verdicts if verdict.complaints]
    for verdict in wrong:
        print(f"\n{verdict.case.lesson} · {verdict.case.kind} {verdict.case.name}")
        for complaint in verdict.complaints:
            print(f"  {complaint}")
    print(f"\n{len(verdicts) - len(wrong)} of {len(verdicts)} cases hold")
    unneeded = [line for lesson in lessons for line in matrix.complaints(lesson)]
    for line in unneeded:
        print(line)
    return 1 if wrong or unneeded else 0


def _print_matrix(lessons: list[str], verdicts: list[Verdict]) -> None:
    """One row per lesson: how many cases of each kind hold; then, for each property, which wrong answers fail it."""
    print(f"{'lesson':<18}{'solution':>12}{'unedited':>12}{'mutants':>12}{'variants':>12}")
    for lesson in lessons:
        row = f"{lesson:<18}"
        for kind in ("solution", "unedited", "mutant", "variant"):
            of_kind = [v for v in verdicts if (v.case.lesson, v.case.kind) == (lesson, kind)]
            row += f"{f'{sum(not v.complaints for v in of_kind)}/{len(of_kind)}':>12}"
        print(row)
    for lesson in lessons:
        print(f"\n{matrix.text(lesson)}")
