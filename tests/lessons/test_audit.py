"""The grading is right: every lesson's solution, stub, known mistakes and known other answers get what they deserve."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import warnings

import nbformat
import pytest

from autograder import checks
from autograder.__main__ import main
from autograder.answers import right, verdicts, wrong
from autograder.answers.verdicts import Losses
from autograder.audit import audit, disguises, tables
from autograder.checks import cases, check, hints
from autograder.checks.expect import expect_equal
from autograder.grade import jail
from autograder.lesson import names, notebook
from tests.helpers import tiny_lesson

#: How many known wrong answers of each exercise `make test` tries, next to as many other right ones.
SAMPLE = 1

each_batch = pytest.mark.parametrize(
    ("lesson", "batch"),
    [
        pytest.param(lesson, batch, id=f"{lesson}-unedited" if batch == "unedited" else batch)
        for lesson in notebook.lessons()
        for batch in audit.batches(lesson)
        if batch != "solution"  # test_solutions.py runs the solutions with their tests
    ],
)


@pytest.fixture
def same_inputs():
    """All answers are tried on the same inputs; the hints of an exercise are then found out once in a process."""
    if hints.grading().seed != check.fresh_seed():
        check.share_inputs()


def problems(verdicts):
    """What is wrong with the grading, by case."""
    assert verdicts
    return {f"{v.case.kind} {v.case.name}": v.problems for v in verdicts if v.problems}


def verdicts_of(lesson, batch, **how):
    """The verdicts on a batch. A case that does not hold is tried once more, on the same inputs.

    A rank that a busy machine does not run for seconds looks like one that waits for a message. A check that is wrong,
    or a hint that does not fit, fails both times: AUTOGRADER_SEED fixes what is drawn.
    """
    how["jailed"] = not jail.missing()
    verdicts = audit.try_batch(lesson, batch, thorough=False, **how)
    if failed := problems(verdicts):
        check.share_inputs()  # forget how known answers failed on the busy machine
        warnings.warn(f"tried again: {failed}", stacklevel=2)
        verdicts = audit.try_batch(lesson, batch, thorough=False, **how)
    return verdicts


# Each answer is tried in a jail where there is one, with the test of its own exercise only; `make audit` tries it with
# all that it can break.


@pytest.mark.slow
@pytest.mark.apart
@each_batch
def test_some_known_answers_get_what_they_deserve(lesson, batch, same_inputs):
    assert not problems(verdicts_of(lesson, batch, most=SAMPLE))


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.apart
@each_batch
def test_all_known_answers_get_what_they_deserve(lesson, batch, same_inputs):
    verdicts = verdicts_of(lesson, batch)
    assert not problems(verdicts)
    assert len(verdicts) == len(audit.batches(lesson)[batch])


@pytest.mark.slow
@pytest.mark.apart
@pytest.mark.parametrize("lesson", notebook.lessons())
def test_each_check_fails_for_a_wrong_answer(lesson):
    """For one that is recorded to fail it, or to fail the core, behind which no others were tried.

    The check runs alone in this process, a third of a second on average; what a page says of the answer, and what else
    the answer fails, `make thorough` tries. A veto that no wrong answer fails is for tricks: see tests/attacks.
    """
    known, holding = wrong.load_wrong(lesson), []
    for cell in notebook.read(lesson).cells:
        for one in checks.of_exercise(cell.id) if notebook.nbgrader_role(cell) == "solution" else ():
            mine = [answer for answer in known if answer.cell == cell.id and one.name in answer.fails]
            if not mine and not one.veto:
                mine = [answer for answer in known if answer.cell == cell.id and not answer.fails]
            body = one.run.__wrapped__
            with hints.under(later=True):
                failures = (
                    hints.known_failure(
                        cell.id, body, one.parameters, answer, check.fresh_seed(), math.inf, check.attempt
                    )
                    for answer in mine
                )
                if mine and not any(failures):
                    holding.append(one.place)
    assert not holding


@pytest.mark.parametrize(("failures", "holds"), [(0, True), (1, True), (2, False)])
def test_a_case_that_does_not_hold_is_tried_once_more(monkeypatch, failures, holds):
    case, tries = audit.Case("03_step", "wrong", "one"), []

    def try_batch(lesson, batch, thorough, jailed):
        tries.append(batch)
        return [audit.Verdict(case, ("kept its marks",) if len(tries) <= failures else ())]

    monkeypatch.setattr(audit, "try_batch", try_batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert (not problems(verdicts_of("03_step", "03-ex1-worker-gradient"))) == holds
    assert len(tries) == min(failures, 1) + 1


@pytest.mark.parametrize("lesson", notebook.lessons())
def test_every_case_is_in_one_batch(lesson):
    tried = [case for batch in audit.batches(lesson).values() for case in batch]
    assert sorted(map(str, tried)) == sorted(map(str, audit.cases(lesson)))


def test_a_case_that_held_is_tried_again_when_its_lesson_has_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "VERDICTS", tmp_path)
    tried, key = [], ["one state of the code"]
    monkeypatch.setattr(audit.keys, "lesson_key", lambda lesson, **_: key[0])

    def examine(case, thorough, jailed):
        tried.append((case.name, thorough))
        return audit.Verdict(case, ("does not hold",) if case.name == "bad" else ())

    monkeypatch.setattr(audit, "examine", examine)
    cases = [audit.Case("L", "wrong", name) for name in ("good", "bad")] + [audit.Case("L", "right", "other")]
    monkeypatch.setattr(audit, "batches", lambda lesson: {"ex": cases})
    for thorough, expected in ((False, ["good", "bad", "other"]), (False, ["bad"]), (True, ["good", "bad", "other"])):
        assert [v.case.name for v in audit.try_batch("L", "ex", thorough)] == ["good", "bad", "other"]
        assert tried == [(name, thorough) for name in expected]
        tried.clear()
    audit.try_batch("L", "ex", thorough=False)
    assert tried == [("bad", False)], "held thoroughly is held"
    assert [v.problems for v in audit.try_batch("L", "ex")] == [(), ("does not hold",), ()]
    tried.clear()
    for jailed, expected in ((True, ["good", "bad", "other"]), (True, ["bad"]), (False, ["bad"])):
        audit.try_batch("L", "ex", jailed=jailed)
        assert [name for name, _ in tried] == expected, "what has held in a jail holds outside as well"
        tried.clear()
    audit.try_batch("L", "ex", force=True, most=1)
    assert tried == [("good", True), ("other", True)], "one wrong, one other right"
    tried.clear()
    key[0] = "another state"
    audit.try_batch("L", "ex")
    assert len(tried) == 3


@pytest.mark.parametrize("lesson", notebook.lessons())
def test_no_two_answers_have_the_same_name(lesson):
    names = [answer.name for answer in wrong.load_wrong(lesson) + right.load_right(lesson)]
    assert len(names) == len(set(names))


def test_no_hint_breaks_a_word_at_the_end_of_a_line():
    """Lines are joined with a space: of `all-` and `reduce` that makes `all- reduce`."""
    hints = [(known.name, known.hint) for lesson in notebook.lessons() for known in wrong.load_wrong(lesson)]
    broken = [name for name, hint in hints if re.search(r"\w- (?!and |or )\w", hint)]
    assert not broken and len(hints) > 500


def _examine_with(monkeypatch, thorough=True, first=None, **changes):
    """The problems of lesson 03's first wrong answer, or of another one, after changing what is said of it."""
    first = dataclasses.replace(first or wrong.load_wrong("03_step")[0], **changes)
    monkeypatch.setattr("autograder.answers.wrong.load_wrong", lambda lesson: [first])
    return audit.examine(audit.Case("03_step", "wrong", first.name), thorough).problems


def _breaks_others():
    return next(known for known in wrong.load_wrong("03_step") if len(known.breaks) > 1)


@pytest.mark.parametrize("thorough", [True, False])
def test_the_audit_notices_a_mistake_that_passes_every_check(monkeypatch, thorough):
    first = wrong.load_wrong("03_step")[0]
    solution = next(c for c in notebook.read("03_step").cells if c.id == first.cell)
    problems = _examine_with(monkeypatch, thorough, source=solution.source)
    assert problems == (f"{first.cell}-test kept its marks: no check fails for this answer, so one is missing",)


def test_the_audit_notices_a_mistake_of_which_nothing_is_recorded(monkeypatch):
    first = wrong.load_wrong("03_step")[0]
    assert _examine_with(monkeypatch, breaks=(), fails=()) == (
        f"what it fails is not recorded: {verdicts.to_record(first.cell)}",
        f"+{verdicts.line(first.cell, first.name, Losses(first.breaks, first.fails))}",
    )


def test_the_audit_notices_marks_that_are_lost_elsewhere_and_marks_that_are_not(monkeypatch):
    first = _breaks_others()
    rest = " ".join(test.removesuffix("-test") for test in first.breaks[1:])
    said, old, new, *why = _examine_with(monkeypatch, first=first, breaks=first.breaks[:1])
    assert said.startswith("what it fails has changed") and len(why) == len(first.breaks) - 1
    assert new == f"{old.replace('-', '+', 1)} > {rest}"
    assert why[0].startswith(f"{sorted(first.breaks[1:])[0]} lost its marks: ")
    said, old, new = _examine_with(monkeypatch, first=first, breaks=(*first.breaks, "13-no-such-test"))
    assert old == f"{new.replace('+', '-', 1)} 13-no-such"


def test_an_audit_that_is_not_thorough_runs_the_test_of_the_exercise_alone(monkeypatch):
    first = _breaks_others()
    for breaks in (first.breaks[:1], (*first.breaks, "13-no-such-test")):
        assert not _examine_with(monkeypatch, False, first=first, breaks=breaks)
        assert _examine_with(monkeypatch, first=first, breaks=breaks)


def test_only_the_grade_cells_that_an_answer_can_reach_are_run_for_it():
    nb = notebook.read("01_collectives")
    reach = {cell: names.dependents(nb, f"01-{cell}") for cell in ("ex1-broadcast", "ex3-all-gather", "imports")}
    assert reach["ex1-broadcast"] == {"01-ex1-broadcast-test", "01-ex5-tree-all-reduce-test"}
    assert reach["ex3-all-gather"] == {"01-ex3-all-gather-test", "01-ex4-all-reduce-test"}
    assert len(reach["imports"]) == 7


def test_the_audit_notices_a_hint_that_is_not_shown(monkeypatch):
    assert not _examine_with(monkeypatch)
    # When the list of known mistakes does not hold it, it cannot be shown.
    monkeypatch.setattr("autograder.answers.wrong.of_exercise", lambda exercise: [])
    problems = _examine_with(monkeypatch)
    assert any("does not show the hint" in line for line in problems)


def test_an_unknown_lesson_is_one_line(capsys):
    assert main(["audit", "99_nothing"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "99_nothing" in said and "03_step" in said


def test_right_answers_are_not_the_solution():
    for lesson in notebook.lessons():
        sources = {c.id: c.source for c in notebook.read(lesson).cells}
        assert all(known.source.strip() != sources[known.cell].strip() for known in right.load_right(lesson))


def test_a_lesson_goes_by_its_number_and_an_exercise_by_the_start_of_its_name():
    assert audit.named(["03"]) == audit.named(["03_step"]) == [("03_step", name) for name in audit.batches("03_step")]
    assert audit.named(["08-ex3"]) == audit.named(["08-ex3-step"]) == [("08_zero1", "08-ex3-step")]
    assert len(audit.named(["03", "03-ex1"])) == len(audit.named(["03"]))
    assert {lesson for lesson, _ in audit.named([])} == set(notebook.lessons())


@pytest.mark.parametrize("name", ["08-ex9", "08-ex3-ste", "98-ex1"])
def test_an_unknown_exercise_is_one_line(capsys, name):
    assert main(["audit", name]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# The record

WRONG = """# Wrong

## 98-ex1-twice

### zero_is_one
You return 1 for 0.
```diff
-    doubled_value_of_the_input = 2 * x
+    doubled_value_of_the_input = 2 * x or 1
```

### adds_three
You took three times x.
```diff
-    doubled_value_of_the_input = 2 * x
+    doubled_value_of_the_input = 3 * x
```
"""


class Tiny:
    """A lesson of one exercise with two checks, whose audit runs in this process. tried: what the core tries."""

    def __init__(self, root, monkeypatch):
        self.folder = root / "solutions" / "98_tiny"
        self.folder.mkdir(parents=True)
        (self.folder / "wrong.md").write_text(WRONG)
        hidden = 'from autograder.checks import try_exercise\n\ntry_exercise("98-ex1-twice", twice=twice)'
        tiny_lesson.lesson(root / "solutions", hidden=hidden)
        monkeypatch.setattr(notebook, "ROOT", root)
        monkeypatch.setattr(notebook, "SOLUTIONS", root / "solutions")
        monkeypatch.setattr(audit, "VERDICTS", root / "held")
        monkeypatch.setattr(audit, "audit", self._audit)
        self.tried = lambda: [3]

        def doubles(twice):
            """It gives twice x."""
            for x in self.tried():
                expect_equal(f"x = {x}", twice(x), 2 * x, what="twice x")

        def takes_zero(twice):
            """It gives 0 for 0."""
            expect_equal("x = 0", twice(0), 0, what="twice 0")

        for points, body in ((2, doubles), (1, takes_zero)):
            body.__module__ = "autograder.checks.98_tiny.checks"
            # When the test ends, this is undone, and with it what `check` puts there.
            monkeypatch.setitem(check.REGISTERED, (body.__module__, body.__name__), None)
            check.check("98-ex1-twice", points=points, fixed="a test of the audit")(body)

    @staticmethod
    def _audit(todo, jobs=2, thorough=True, force=False, jailed=False):
        check.share_inputs()
        return [verdict for batch in todo for verdict in audit.try_batch(*batch, thorough, None, force, jailed)]

    @property
    def recorded(self):
        return (self.folder / "verdicts.txt").read_text().splitlines()[1:]


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    monkeypatch.delenv(check.SEED, raising=False)
    with hints.under(seed=None, known_failures={}):
        yield Tiny(tmp_path, monkeypatch)


def test_what_wrong_answers_fail_is_recorded(tiny, capsys):
    assert main(["audit", "98"]) == 1
    said = capsys.readouterr().out
    assert said.count("what it fails is not recorded: make audit LESSONS=98-ex1 RECORD=1\n") == 2
    assert "  +  adds_three: core\n" in said and not (tiny.folder / "verdicts.txt").exists()
    assert main(["audit", "98", "--record"]) == 0
    assert "solutions/98_tiny/verdicts.txt:\n" in capsys.readouterr().out
    assert tiny.recorded == ["  zero_is_one: takes_zero", "  adds_three: core"]
    assert main(["audit", "98"]) == 0
    assert "verdicts.txt" not in capsys.readouterr().out
    (tiny.folder / "wrong.md").write_text(WRONG.replace("zero_is_one", "one_for_zero"))
    assert main(["audit", "98", "--record"]) == 0
    assert tiny.recorded == ["  one_for_zero: takes_zero", "  adds_three: core"], "the old name is gone"


def test_a_change_of_a_check_shows_as_a_changed_line(tiny, capsys):
    assert main(["audit", "98", "--record"]) == 0
    tiny.tried = lambda: [3, 0]
    capsys.readouterr()
    assert main(["audit", "98", "--force"]) == 1
    said = capsys.readouterr().out
    assert "\n  -  zero_is_one: takes_zero\n  +  zero_is_one: doubles takes_zero\n  doubles fails: " in said
    assert "adds_three" not in said.partition("98_tiny · wrong")[2] and "3 of 4 cases hold" in said
    assert main(["audit", "98", "--force", "--record"]) == 1, "no wrong answer fails the other check alone"
    said = capsys.readouterr().out
    assert (
        "  -  zero_is_one: takes_zero\n  +  zero_is_one: doubles takes_zero\n" in said and "4 of 4 cases hold" in said
    )
    assert tiny.recorded == ["  zero_is_one: doubles takes_zero", "  adds_three: core"]


def misnamed(twice):
    """It gives 0 for 0."""
    expect_equal("x = 0", twice(0), zero, what="twice 0")  # noqa: F821


def without_expectation(twice):
    """It gives 0 for 0."""
    yield cases.Call(twice, 0)


@pytest.mark.parametrize(
    ("body", "line", "says"),
    [
        (misnamed, 2, "NameError: name 'zero' is not defined"),
        (without_expectation, 2, "a Call without expectation: gives=… or raises=…"),
    ],
)
def test_a_checks_own_mistake_is_named_with_its_line_and_not_recorded(tiny, capsys, body, line, says):
    body.__module__, body.__name__ = "autograder.checks.98_tiny.checks", "takes_zero"
    check.check("98-ex1-twice", points=1, fixed="a test of the audit")(body)
    (tiny.folder / "right.py").write_text(RIGHT)
    assert main(["audit", "98", "--record"]) == 1
    at = f"tests/lessons/test_audit.py:{body.__code__.co_firstlineno + line}"
    fault = f"  {at}: {says}: a mistake of the check takes_zero itself: correct it\n"
    said = capsys.readouterr().out
    assert "98_tiny · right by_a_sum\n  98-ex1-twice-test lost its marks: " in said and said.count(fault) >= 3, said
    assert not (tiny.folder / "verdicts.txt").exists() or "takes_zero" not in (tiny.folder / "verdicts.txt").read_text()


RIGHT = '''from autograder.answers.right import answer_to


@answer_to("98-ex1-twice")
def by_a_sum():
    """Adds x to itself."""

    def twice(x):
        return x + x
'''


def test_what_depends_on_luck_is_not_recorded(tiny, capsys):
    tries = []

    def tried():
        tries.append(hints.grading().seed)
        return [3, 0] if len(set(tries)) > 1 else [3]

    tiny.tried = tried
    assert main(["audit", "98", "--record"]) == 1
    said = capsys.readouterr().out
    assert "zero_is_one is not recorded: what it fails depends on the inputs that are drawn" in said
    assert tiny.recorded == ["  adds_three: core"] and len(set(tries)) == 3


def test_a_wrong_answer_that_passes_everything_is_never_recorded(tiny, capsys):
    (tiny.folder / "wrong.md").write_text(WRONG.replace("2 * x or 1", "x + x"))
    assert main(["audit", "98", "--record"]) == 1
    said = capsys.readouterr().out
    assert "98-ex1-twice-test kept its marks: no check fails for this answer, so one is missing" in said
    assert tiny.recorded == ["  adds_three: core"]


def test_nothing_is_recorded_with_one_seed(tiny, monkeypatch, capsys):
    monkeypatch.setenv(check.SEED, "1")
    assert main(["audit", "98", "--record"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "unset AUTOGRADER_SEED" in said


def test_recording_voids_nothing_but_what_it_changes(tiny, monkeypatch):
    assert main(["audit", "98", "--record"]) == 0
    examined = []
    examine = audit.examine
    monkeypatch.setattr(audit, "examine", lambda case, *how: examined.append(case.name) or examine(case, *how))
    (tiny.folder / "verdicts.txt").write_text(f"98-ex1-twice\n{chr(10).join(tiny.recorded)} > 98-ex2-other\n")
    assert main(["audit", "98"]) == 1
    assert examined == ["adds_three"], "the others hold as recorded"
    examined.clear()
    assert main(["audit", "98", "--record"]) == 0
    assert set(examined) == {"adds_three"} and tiny.recorded[1] == "  adds_three: core"


# --- what a student can learn by heart ---


@pytest.mark.slow
@pytest.mark.parametrize("lesson", notebook.lessons())
def test_no_check_holds_for_a_table_of_its_cases(lesson):
    assert not list(tables.problems(lesson))


@pytest.mark.slow
@pytest.mark.parametrize("lesson", notebook.lessons())
def test_no_visible_assertion_is_stricter_than_the_checks(lesson):
    assert not list(disguises.problems(lesson))


def test_a_visible_assertion_that_no_check_repeats_is_named(tiny):
    """The tiny lesson's checks try whole numbers; its visible part asks for the type of another one."""
    assert not list(disguises.problems("98_tiny"))
    path = tiny.folder / "98_tiny.ipynb"
    nb = nbformat.read(path, as_version=4)
    next(cell for cell in nb.cells if cell.id == "98-ex1-twice-test").source += "\nassert isinstance(twice(1.5), float)"
    nbformat.write(nb, path)
    (said,) = disguises.problems("98_tiny")
    assert said.endswith(": the visible part refuses a tensor for a float, and no check does: let one, or drop it")


def test_a_check_that_draws_nothing_holds_for_a_table():
    """Lesson 13's table of pairs was one: fourteen hand-ins gave full marks."""

    def doubles(double, *, rng):
        for x in (1, 2, [3]):
            expect_equal(str(x), double(x), x * 2, what="twice")

    def doubles_some(double, *, rng):
        doubles(double, rng=rng)
        expect_equal("drawn", double(number := int(rng.integers(10**9))), 2 * number, what="twice")

    space = {"double": lambda x: x * 2}

    def known(body) -> int:
        run = functools.wraps(body)(lambda double: None)
        return tables.known_by_heart(check.Check("ex", 1.0, False, run), space)

    assert known(doubles) == 3 and known(doubles_some) == 0


@pytest.mark.parametrize("lesson", notebook.lessons())
def test_each_check_draws_a_case_or_says_why_not(lesson):
    found = [one for cell in notebook.read(lesson).cells for one in checks.of_exercise(cell.id)]
    assert found and not [one.place for one in found if not one.draws and not one.fixed]
