"""`autograder audit`: is the grading itself right?

Four claims are tested for each lesson: the solution gets full marks; the unedited student notebook gets none; every
known wrong answer fails a check of its exercise, the student sees its hint, and the marks that it loses, there and in
the exercises that build on it, are those that are recorded (`answers.verdicts`); every other known right answer keeps
full marks. And no check holds for an answer that knows its fixed cases by heart (`tables`), and no visible assertion is
stricter than all checks (`disguises`). Cells run as they do when
a class is graded (`run_cells`), in this process or, with `--jail`, in a jail. A grade cell that does not depend on the
cell that an answer replaces is not run again for that answer: the solution has shown its outcome. Each process of an
audit draws its inputs once, and every audit draws new ones (`check.share_inputs`).

It can also record what wrong answers fail: `make audit LESSONS=08-ex2 RECORD=1`. An answer that differs from its record
is tried a second time, on other inputs, and recorded only if it fails the same again.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import copy
import difflib
import itertools
import json
import math
import multiprocessing
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import nbformat

from autograder import checks, properties
from autograder.answers import answer, right, verdicts, wrong
from autograder.answers.answer import Answer
from autograder.answers.verdicts import NOT_RECORDED, Losses
from autograder.audit import disguises, matrix, tables
from autograder.checks import hints
from autograder.checks.cases import CaseError
from autograder.checks.check import SEED, share_inputs
from autograder.grade import isolation
from autograder.grade.nbgrader import scoring
from autograder.grade.outcome import CellOutcome
from autograder.grade.running import kernels, run_cells
from autograder.grade.running.kernels import Kernel, OwnKernel
from autograder.lesson import keys, names, notebook, pieces
from autograder.lesson.files import write_whole

#: How a problem with an answer begins of which nothing is recorded; what it was seen to fail follows.
UNRECORDED = "what it fails is not recorded"
#: Where the cases that have held are recorded, one file per exercise.
VERDICTS = notebook.ROOT / "_build" / "audit"

_SOLUTION = re.compile(r"^([ \t]*)### BEGIN SOLUTION.*?### END SOLUTION *$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Case:
    """One notebook to grade: a lesson, with one cell swapped for a known answer."""

    lesson: str
    kind: str  # "solution", "unedited", "wrong" or "right"
    name: str = ""

    def answer(self) -> Answer | None:
        """The known answer; none for the solution and the unedited notebook."""
        known = {"wrong": wrong.load_wrong, "right": right.load_right}.get(self.kind, lambda _: [])(self.lesson)
        return next((answer for answer in known if answer.name == self.name), None)


@dataclass(frozen=True)
class Verdict:
    """What is wrong with the grading of a case, in one sentence each; a case without problems holds.

    losses: what a known wrong answer was seen to lose. faults: those problems that name a check's own mistake.
    """

    case: Case
    problems: tuple[str, ...]
    losses: Losses = NOT_RECORDED
    faults: tuple[str, ...] = ()


def cases(lesson: str) -> list[Case]:
    """All cases of one lesson."""
    return [
        Case(lesson, "solution"),
        Case(lesson, "unedited"),
        *(Case(lesson, "wrong", known.name) for known in wrong.load_wrong(lesson)),
        *(Case(lesson, "right", known.name) for known in right.load_right(lesson)),
    ]


def examine(case: Case, thorough: bool = True, jailed: bool = False) -> Verdict:
    """Grade one case and compare the outcome with the claim.

    thorough: for an answer, run all grade cells that depend on it, to see all marks that it loses. Otherwise only the
    test of its own exercise runs, and a wrong answer's hint is searched for in itself alone. jailed: as for `tested`.
    """
    known = case.answer()
    nb = notebook.read(case.lesson, {known.cell: known.source} if known else None)
    if known is None:
        tests = tested(unedited(nb) if case.kind == "unedited" else nb, case.lesson, jailed=jailed)
        lost = {name: test for name, test in tests.items() if not test.passed}
        if case.kind == "unedited":
            return Verdict(case, tuple(f"{name} kept its marks" for name in tests if name not in lost))
        return _verdict(case, itertools.starmap(_lost, lost.items()), lost)
    own_test = f"{known.cell}-test"
    only = {own_test} | (names.dependents(nb, known.cell) if thorough else set())
    # Whether the exercises that build on this one lose marks shows at their cores. So does what is recorded as `core`.
    whole = set() if known.breaks and not known.fails else {own_test}
    tests = tested(nb, case.lesson, only, jailed, whole)
    lost = {name: test for name, test in tests.items() if not test.passed}
    if case.kind == "right":
        return _verdict(case, itertools.starmap(_lost, lost.items()), lost)
    own = tests[own_test]
    if not matrix.failing(own).keys() - {properties.VISIBLE}:
        seen = f"only the visible part of {own_test} fails" if own_test in lost else f"{own_test} kept its marks"
        return _verdict(case, [f"{seen}: no check fails for this answer, so one is missing"], lost)
    losses = matrix.losses(nb, known, lost)
    problems = _unlike_its_record(known, losses, lost, thorough)
    with hints.only(None if thorough else known.name):
        run_cells.add_hints([own], math.inf)
    if known.name not in {hint.name for one in own.lost for hint in one.reason.hints}:
        problems.append(f"{own_test} does not show the hint, it says: {scoring.comment(own)}")
    return _verdict(case, problems, lost, losses)


def _verdict(
    case: Case, problems: Iterable[str], lost: dict[str, CellOutcome], losses: Losses = NOT_RECORDED
) -> Verdict:
    """The verdict on a case. lost: the tests without full marks, in which a check's own mistake can have shown."""
    said: dict[str, None] = {}
    for one in (one for test in lost.values() for one in test.lost):
        why = one.reason
        if fault := why.fault or (why.error == CaseError.__name__ and why.message):
            said[f"{fault}: a mistake of the check {why.check or one.name} itself: correct it"] = None
    faults = tuple(said)
    return Verdict(case, (*problems, *faults), losses, faults)


#: Seconds for a cell, a test and a notebook.
LIMITS = run_cells.Limits(60, 240, 900)


def tested(
    nb: nbformat.NotebookNode,
    lesson: str,
    only: Collection[str] | None = None,
    jailed: bool = False,
    whole: Collection[str] | None = None,
) -> dict[str, CellOutcome]:
    """What became of the test cells of a notebook, run behind its setup and answer cells.

    only: the ids of the test cells to run, if not all. Demonstrations are left out, because a known wrong answer may
    break them. jailed: answers run in a jail, as students' do, and with limits of time; otherwise in this process.
    whole: as for `run_cells`.
    """
    cells = [
        cell for cell in nb.cells
        if notebook.is_setup(cell) or (run_cells.is_test(cell) and (only is None or cell.id in only))
    ]  # fmt: skip
    makes: contextlib.AbstractContextManager[Callable[[], Kernel]] = contextlib.nullcontext(OwnKernel)
    if jailed:
        files = pieces.companions(notebook.solution_path(lesson).parent)
        makes = kernels.module(isolation.kernels(True)).kernels_for(notebook.read(lesson), files)
    with makes as new_kernel, hints.later():
        found = run_cells.run_cells(cells, new_kernel, LIMITS, brief=True, whole=whole)
    return {cell.id: found[cell.id] for cell in cells if run_cells.is_test(cell)}


def _lost(name: str, test: CellOutcome) -> str:
    return f"{name} lost its marks: {scoring.comment(test)}"


def _unlike_its_record(known: Answer, losses: Losses, lost: dict[str, CellOutcome], thorough: bool) -> list[str]:
    """What a wrong answer loses, where that is not recorded: as a diff of `verdicts.txt`, and why."""
    recorded = Losses(known.breaks, known.fails)
    if as_recorded(losses, recorded, thorough):
        return []
    seen = f"+{verdicts.line(known.cell, known.name, losses)}"
    if recorded == NOT_RECORDED:
        return [f"{UNRECORDED}: {verdicts.to_record(known.cell)}", seen]
    failing, own = matrix.failing(lost[f"{known.cell}-test"]), f"{known.cell}-test"
    why = [f"{name} fails: {text}" for name, text in failing.items() if name and name not in recorded.fails]
    if losses.fails == recorded.fails:
        why = [_lost(name, lost[name]) for name in sorted(lost) if name not in (own, *recorded.breaks)]
    return [
        f"what it fails has changed; if that is right: {verdicts.to_record(known.cell)}",
        f"-{verdicts.line(known.cell, known.name, recorded)}",
        *([seen] if thorough else [f"+  {known.name}: {' '.join(losses.fails) or 'core'}"]),
        *why,
    ]


def as_recorded(losses: Losses, recorded: Losses, thorough: bool) -> bool:
    """Is what was seen what is recorded? thorough: the exercises that build on this one were seen, too."""
    if thorough or NOT_RECORDED in (losses, recorded):
        return losses == recorded
    return losses.fails == recorded.fails


def unedited(nb: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The student's notebook as released, with the hidden tests put back as grading does."""
    nb = copy.deepcopy(nb)
    for cell in nb.cells:
        cell.source = _SOLUTION.sub(r"\1raise NotImplementedError", cell.source)
    return nb


def batches(lesson: str) -> dict[str, list[Case]]:
    """A lesson's cases, grouped: the known answers to each exercise, the solution, the notebook as released.

    One process tries a batch, so that it runs an exercise's known wrong answers once for all their hints.
    """
    found: dict[str, list[Case]] = {}
    for case in cases(lesson):
        known = case.answer()
        found.setdefault(known.cell if known else case.kind, []).append(case)
    return found


def try_batch(
    lesson: str, name: str, thorough: bool = True, most: int | None = None, force: bool = False, jailed: bool = False
) -> list[Verdict]:
    """The verdicts on a batch. A case that has held with the same code is not tried again, unless `force` is set.

    thorough, jailed: as for `examine`. most: try at most this many known wrong answers to an exercise (the subtle ones
    come first), and one right one.
    """
    of_batch = batches(lesson)[name]
    if most is not None:
        others, right_ones = ([case for case in of_batch if (case.kind == "right") == is_right] for is_right in (0, 1))
        of_batch = others[:most] + right_ones[:1]
    held, found = Held(lesson, name), []
    for case in of_batch:
        losses = None if force else held.losses(case, thorough, jailed)
        if losses is not None:
            found.append(Verdict(case, (), losses))
            continue
        found.append(examine(case, thorough, jailed))
        held.add(found[-1], thorough, jailed)
    return found


class Held:
    """The cases of a batch that have held, with what they lost, in a file; any change of the code voids it.

    What is recorded is not part of the code: a case is tried again only if its own record is another now. But hints
    are searched for among the answers that are recorded to fail a check, so all these are part of the key.
    """

    def __init__(self, lesson: str, batch: str):
        self.path = VERDICTS / lesson / f"{batch}.json"
        fails = [(known.name, known.fails) for known in wrong.load_wrong(lesson) if known.cell == batch]
        self.key = f"{keys.lesson_key(lesson, more=keys.AUDIT, verdicts=False)} {fails}"
        self.cases = self._read()

    def losses(self, case: Case, thorough: bool, jailed: bool = False) -> Losses | None:
        """What a case lost that has held when it was tried at least this thoroughly; None if it is to be tried."""
        kept, known = self.cases.get(f"{case.kind} {case.name}"), case.answer()
        if not kept or thorough > kept["thorough"] or jailed > kept["jailed"]:
            return None
        losses = Losses(tuple(kept["breaks"]), tuple(kept["fails"]))
        recorded = Losses(known.breaks, known.fails) if known else NOT_RECORDED
        return losses if as_recorded(losses, recorded, kept["thorough"]) else None

    def add(self, verdict: Verdict, thorough: bool, jailed: bool = False) -> None:
        """Keep what a case lost if it holds; otherwise forget that it once held."""
        name = f"{verdict.case.kind} {verdict.case.name}"
        before = self.cases.get(name, {"thorough": False, "jailed": False})
        if verdict.problems:
            self.cases.pop(name, None)
        elif thorough >= before["thorough"] and jailed >= before["jailed"]:
            self.cases[name] = {"thorough": thorough, "jailed": jailed, **verdict.losses._asdict()}
        write_whole(self.path, json.dumps({"key": self.key, "cases": self.cases}, indent=1))

    def _read(self) -> dict[str, dict]:
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


def audit(
    todo: list[tuple[str, str]], jobs: int = 2, thorough: bool = True, force: bool = False, jailed: bool = False
) -> list[Verdict]:
    """Examine the cases of these batches (lesson, name), `jobs` batches at a time. Each worker loads torch once."""
    from tqdm import tqdm

    size = {(lesson, name): len(batches(lesson)[name]) for lesson, name in todo}
    todo = sorted(todo, key=lambda batch: -size[batch])  # long ones first, so that all workers end together
    total = sum(size.values())
    lessons = sorted({lesson for lesson, _ in todo})
    found: list[Verdict] = []
    context = multiprocessing.get_context("spawn")
    with (
        concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context, initializer=share_inputs) as pool,
        tqdm(total=total, desc="audit", unit="case", disable=not sys.stderr.isatty()) as bar,
    ):
        running = [pool.submit(try_batch, *batch, thorough, None, force, jailed) for batch in todo]
        for done in concurrent.futures.as_completed(running):
            found += done.result()
            bar.update(len(done.result()))
    order = {case: place for place, case in enumerate(case for lesson in lessons for case in cases(lesson))}
    return sorted(found, key=lambda verdict: order[verdict.case])


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """`audit [LESSON or EXERCISE…] [--record] [--jail] [--jobs N]`."""
    parser = subparsers.add_parser("audit", help="grade all known wrong and right answers, to test the checks")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="a lesson (08_zero1) or an exercise (08-ex3); default: all"
    )
    parser.add_argument("--jobs", type=int, default=2, help="batches graded at once (default: 2)")
    parser.add_argument("--force", action="store_true", help="try even the cases that have held with the same code")
    parser.add_argument("--jail", action="store_true", help="run answers in a jail, as when a class is graded")
    parser.add_argument("--record", action="store_true", help="write what wrong answers fail into verdicts.txt")
    parser.set_defaults(run=_main)


def _main(arguments: argparse.Namespace) -> int:
    todo = named(arguments.names)
    for lesson in sorted({lesson for lesson, _ in todo}):
        checks.refuse_checks_of_nothing(lesson)
    if arguments.jail:
        isolation.refuse()
    examined = audit(todo, arguments.jobs, force=arguments.force, jailed=arguments.jail)
    if arguments.record:
        examined = record(todo, examined, arguments.jobs)
    lessons = list(dict.fromkeys(lesson for lesson, _ in todo))
    _print_matrix(lessons, examined)
    failed = [verdict for verdict in examined if verdict.problems]
    for verdict in failed:
        print(f"\n{verdict.case.lesson} · {verdict.case.kind} {verdict.case.name}")
        for problem in verdict.problems:
            print(f"  {problem}")
    print(f"\n{len(examined) - len(failed)} of {len(examined)} cases hold")
    about = (matrix.problems, tables.problems, disguises.problems)
    unneeded = [line for lesson in lessons for problems in about for line in problems(lesson)]
    for line in unneeded:
        print(line)
    return 1 if failed or unneeded else 0


def record(todo: list[tuple[str, str]], first: list[Verdict], jobs: int = 2) -> list[Verdict]:
    """Write what wrong answers lose into `verdicts.txt`, and print what changes there. The verdicts after that.

    first: the verdicts on these batches. What differs from its record is tried again, on other inputs, so that no luck
    is recorded: what does not lose the same again keeps the record that it has.
    """
    if os.environ.get(SEED) is not None:
        raise ValueError(f"what is recorded must be seen on two draws of inputs: unset {SEED}")
    new = {verdict.case: verdict.losses for verdict in first if verdict.losses != _recorded(verdict.case)}
    broken = {verdict.case for verdict in first if verdict.faults}
    new = {case: losses for case, losses in new.items() if losses != NOT_RECORDED and case not in broken}
    batch_of = {case: (lesson, name) for lesson, name in todo for case in batches(lesson)[name]}
    changed = list(dict.fromkeys(batch_of[case] for case in new))
    for again in audit(changed, jobs) if new else []:  # other processes, so other inputs
        if new.get(again.case, again.losses) != again.losses:
            print(f"{again.case.name} is not recorded: what it fails depends on the inputs that are drawn")
            del new[again.case]
    for lesson in dict.fromkeys(lesson for lesson, _ in todo):
        _write_record(lesson, {case.name: losses for case, losses in new.items() if case.lesson == lesson})
    after = {verdict.case: verdict for verdict in (audit(changed, jobs) if new else [])}
    return [after.get(verdict.case, verdict) for verdict in first]


def _recorded(case: Case) -> Losses:
    known = case.answer()
    return Losses(known.breaks, known.fails) if known else NOT_RECORDED


def _write_record(lesson: str, new: dict[str, Losses]) -> None:
    """Write a lesson's record with the new losses, and without answers that are gone; print the lines that change."""
    path = answer.folder(lesson) / "verdicts.txt"
    before = path.read_text(encoding="utf-8") if path.is_file() else ""
    losses = {
        (known.cell, known.name): new.get(known.name, Losses(known.breaks, known.fails))
        for known in wrong.load_wrong(lesson)
    }
    text = verdicts.text({name: one for name, one in losses.items() if one != NOT_RECORDED})
    if text != before:
        write_whole(path, text)
        print(f"{path.relative_to(notebook.ROOT)}:")
        for line in list(difflib.unified_diff(before.splitlines(), text.splitlines(), lineterm="", n=0))[2:]:
            print(f"  {line}")


def _print_matrix(lessons: list[str], examined: list[Verdict]) -> None:
    """One row per lesson: how many cases of each kind hold; then, for each property, which wrong answers fail it."""
    print(f"{'lesson':<18}{'solution':>12}{'unedited':>12}{'wrong':>12}{'right':>12}")
    for lesson in lessons:
        row = f"{lesson:<18}"
        for kind in ("solution", "unedited", "wrong", "right"):
            of_kind = [v for v in examined if (v.case.lesson, v.case.kind) == (lesson, kind)]
            row += f"{f'{sum(not v.problems for v in of_kind)}/{len(of_kind)}':>12}"
        print(row)
    for lesson in lessons:
        print(f"\n{matrix.text(lesson)}")
