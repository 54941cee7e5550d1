"""The grading is right: every lesson's solution, stub, known mistakes and known other answers get what they deserve."""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
import warnings
from pathlib import Path

import pytest

from autograder.__main__ import main
from autograder.answers import answer as answers
from autograder.answers import mutants, variants
from autograder.answers.mutants.zero1 import step
from autograder.checking import check, hints
from autograder.lessons import notebook
from autograder.soundness import audit

#: The least numbers of known wrong and other right answers of a lesson; for the others see `drafts.sizes`.
LEAST = {
    "01_collectives": (60, 12),
    "02_costs": (40, 8),
    "04_accumulation": (40, 8),
    "05_ddp": (40, 6),
    "06_launch": (40, 6),
    "07_bandwidth": (40, 6),
    "08_zero1": (30, 5),
    "09_fsdp": (40, 6),
    "11_pipeline": (40, 6),
    "12_tensor": (40, 7),
    "13_context": (60, 7),
    "14_experts": (60, 7),
    "15_layout": (79, 7),
    "16_checkpoints": (60, 7),
    "17_capstone": (50, 7),
    "03_step": (15, 4),
}


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
    if hints.Shared.seed != check.fresh_seed():
        check.share_inputs()


def complaints(verdicts):
    """What is wrong with the grading, by case."""
    assert verdicts
    return {f"{v.case.kind} {v.case.name}": v.complaints for v in verdicts if v.complaints}


def verdicts_of(lesson, batch, **how):
    """The verdicts on a batch. A case that does not hold is tried once more, on the same inputs.

    A rank that a busy machine does not run for seconds looks like one that waits for a message. A check that is wrong,
    or a hint that does not fit, fails both times: AUTOGRADER_SEED fixes what is drawn.
    """
    verdicts = audit.try_batch(lesson, batch, thorough=False, **how)
    if wrong := complaints(verdicts):
        check.share_inputs()  # forget how known answers failed on the busy machine
        warnings.warn(f"tried again: {wrong}", stacklevel=2)
        verdicts = audit.try_batch(lesson, batch, thorough=False, **how)
    return verdicts


# Each answer is tried with the test of its own exercise only; `make audit` tries it with all that it can break.


@pytest.mark.slow
@pytest.mark.apart
@each_batch
def test_some_known_answers_get_what_they_deserve(lesson, batch, same_inputs):
    assert not complaints(verdicts_of(lesson, batch, most=SAMPLE))


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.apart
@each_batch
def test_all_known_answers_get_what_they_deserve(lesson, batch, same_inputs):
    verdicts = verdicts_of(lesson, batch)
    assert not complaints(verdicts)
    assert len(verdicts) == len(audit.batches(lesson)[batch])


@pytest.mark.parametrize(("failures", "holds"), [(0, True), (1, True), (2, False)])
def test_a_case_that_does_not_hold_is_tried_once_more(monkeypatch, failures, holds):
    case, tries = audit.Case("03_step", "mutant", "one"), []

    def try_batch(lesson, batch, thorough):
        tries.append(batch)
        return [audit.Verdict(case, ("kept its marks",) if len(tries) <= failures else ())]

    monkeypatch.setattr(audit, "try_batch", try_batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert (not complaints(verdicts_of("03_step", "03-ex1-worker-gradient"))) == holds
    assert len(tries) == min(failures, 1) + 1


@pytest.mark.parametrize("lesson", notebook.lessons())
def test_every_case_is_in_one_batch(lesson):
    tried = [case for batch in audit.batches(lesson).values() for case in batch]
    assert sorted(map(str, tried)) == sorted(map(str, audit.cases(lesson)))


def test_a_case_that_held_is_tried_again_when_its_lesson_has_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "VERDICTS", tmp_path)
    tried, key = [], ["one state of the code"]
    monkeypatch.setattr(audit.keys, "of_lesson", lambda lesson, more: key[0])

    def examine(case, thorough):
        tried.append((case.name, thorough))
        return audit.Verdict(case, ("does not hold",) if case.name == "bad" else ())

    monkeypatch.setattr(audit, "examine", examine)
    cases = [audit.Case("L", "mutant", name) for name in ("good", "bad")] + [audit.Case("L", "variant", "other")]
    monkeypatch.setattr(audit, "batches", lambda lesson: {"ex": cases})
    for thorough, expected in ((False, ["good", "bad", "other"]), (False, ["bad"]), (True, ["good", "bad", "other"])):
        assert [v.case.name for v in audit.try_batch("L", "ex", thorough)] == ["good", "bad", "other"]
        assert tried == [(name, thorough) for name in expected]
        tried.clear()
    audit.try_batch("L", "ex", thorough=False)
    assert tried == [("bad", False)], "held thoroughly is held"
    assert [v.complaints for v in audit.try_batch("L", "ex")] == [(), ("does not hold",), ()]
    tried.clear()
    audit.try_batch("L", "ex", force=True, most=1)
    assert tried == [("good", True), ("other", True)], "one wrong, one other right"
    tried.clear()
    key[0] = "another state"
    audit.try_batch("L", "ex")
    assert len(tried) == 3


@pytest.mark.parametrize("lesson", notebook.lessons())
def test_there_are_enough_answers_to_try(lesson):
    least_mutants, least_variants = LEAST.get(lesson, (1, 1))
    assert len(mutants.of_lesson(lesson)) >= least_mutants
    assert len(variants.of_lesson(lesson)) >= least_variants
    names = [answer.name for answer in mutants.of_lesson(lesson) + variants.of_lesson(lesson)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("lesson", notebook.lessons())
def test_no_two_mistakes_of_an_exercise_have_the_same_hint(lesson):
    hints = [(mutant.cell, mutant.hint) for mutant in mutants.of_lesson(lesson)]
    assert len(hints) == len(set(hints))


def test_no_hint_breaks_a_word_at_the_end_of_a_line():
    """Lines are joined with a space: of `all-` and `reduce` that makes `all- reduce`."""
    hints = [(mutant.name, mutant.hint) for lesson in notebook.lessons() for mutant in mutants.of_lesson(lesson)]
    broken = [name for name, hint in hints if re.search(r"\w- (?!and |or )\w", hint)]
    assert not broken and len(hints) > 500


def test_an_empty_hint_is_noticed(monkeypatch):
    """It is part of every message."""
    assert "its hint is empty: say what the student did and what follows from it" in _examine_with(monkeypatch, hint="")


def _examine_with(monkeypatch, **changes):
    """The verdict on lesson 03's first mutant after changing what is said of it."""
    lesson = "03_step"
    first = dataclasses.replace(mutants.of_lesson(lesson)[0], **changes)
    monkeypatch.setattr("autograder.answers.mutants.of_lesson", lambda lesson: [first])
    return audit.examine(audit.Case(lesson, "mutant", first.name)).complaints


def test_the_audit_notices_a_mistake_that_keeps_its_marks(monkeypatch):
    first = mutants.of_lesson("03_step")[0]
    solution = next(c for c in notebook.read("03_step").cells if c.id == first.cell)
    complaints = _examine_with(monkeypatch, source=solution.source)
    assert f"{first.cell}-test kept its marks" in complaints


def test_the_audit_notices_a_grade_cell_that_does_not_exist(monkeypatch):
    first = mutants.of_lesson("03_step")[0]
    complaints = _examine_with(monkeypatch, breaks=(f"{first.cell}-test", "13-no-such-test"))
    assert "13-no-such-test kept its marks" in complaints


def test_the_audit_notices_marks_lost_elsewhere(monkeypatch):
    first = next(m for m in mutants.of_lesson("03_step") if len(m.breaks) > 1)
    monkeypatch.setattr(
        "autograder.answers.mutants.of_lesson", lambda lesson: [dataclasses.replace(first, breaks=first.breaks[:1])]
    )
    complaints = audit.examine(audit.Case("03_step", "mutant", first.name)).complaints
    assert any(line.startswith(f"{first.breaks[1]} lost its marks") for line in complaints)


def test_an_audit_that_is_not_thorough_runs_the_test_of_the_exercise_alone(monkeypatch):
    first = next(m for m in mutants.of_lesson("03_step") if len(m.breaks) > 1)
    case = audit.Case("03_step", "mutant", first.name)
    for breaks in (first.breaks[:1], (*first.breaks, "13-no-such-test")):
        changed = dataclasses.replace(first, breaks=breaks)
        monkeypatch.setattr("autograder.answers.mutants.of_lesson", lambda lesson, changed=changed: [changed])
        assert audit.examine(case).complaints and not audit.examine(case, thorough=False).complaints
    solution = next(c.source for c in notebook.read("03_step").cells if c.id == first.cell)
    kept = dataclasses.replace(first, source=solution)
    monkeypatch.setattr("autograder.answers.mutants.of_lesson", lambda lesson: [kept])
    assert audit.examine(case, thorough=False).complaints == (f"{first.cell}-test kept its marks",)


def test_only_the_grade_cells_that_an_answer_can_reach_are_run_for_it():
    nb = notebook.read("01_collectives")
    reach = {cell: notebook.dependents(nb, f"01-{cell}") for cell in ("ex1-broadcast", "ex3-all-gather", "imports")}
    assert reach["ex1-broadcast"] == {"01-ex1-broadcast-test", "01-ex5-tree-all-reduce-test"}
    assert reach["ex3-all-gather"] == {"01-ex3-all-gather-test", "01-ex4-all-reduce-test"}
    assert len(reach["imports"]) == 7


def test_the_audit_notices_a_hint_that_is_not_shown(monkeypatch):
    complaints = _examine_with(monkeypatch, hint="A hint that nobody shows.")
    # The hint shown is the one of the list that is patched, so nothing is wrong ...
    assert not any("does not show the hint" in line for line in complaints)
    # ... but when the list of known mistakes does not hold it, it cannot be shown.
    monkeypatch.setattr("autograder.answers.mutants.of_exercise", lambda exercise: [])
    complaints = _examine_with(monkeypatch)
    assert any("does not show the hint" in line for line in complaints)


def test_an_edit_changes_one_passage_of_the_solution():
    cell = "03-ex4-ema-update"
    solution = next(c.source for c in notebook.read("03_step").cells if c.id == cell)
    answer = answers.edit(cell, "Too  slow.", ("def ", "\ndef "), breaks=[f"{cell}-test"])
    assert answer.source == solution.replace("def ", "\ndef ") and answer.hint == "Too slow."
    assert (answer.lesson, answer.cell, answer.breaks) == ("03_step", cell, (f"{cell}-test",))
    for passage, count in (("no such passage", 0), ("e", solution.count("e"))):
        with pytest.raises(ValueError, match=f"the solution has {count} passages"):
            answers.edit(cell, "A hint.", (passage, ""), breaks=[f"{cell}-test"])


EMA = answers.Answer(
    "ema", "03_step", "03-ex4-ema-update", "ema = 1\nreturn ema\n", "Wrong.", ("03-ex4-ema-update-test",)
)


def test_an_edit_of_another_answer_takes_over_its_source_alone():
    answer = answers.edit(EMA.cell, "Later.", ("ema = 1", "ema = 2"), ("= 2", "= 3"), base=EMA)
    assert answer == answers.Answer("", "03_step", EMA.cell, "ema = 3\nreturn ema\n", "Later.", ())
    again = answers.edit(EMA.cell, "Latest.", ("= 3", "= 4"), base=answer, breaks=EMA.breaks)
    assert (again.source, again.breaks) == ("ema = 4\nreturn ema\n", EMA.breaks)
    assert EMA.source == "ema = 1\nreturn ema\n"


def test_an_edit_refuses_passages_that_its_base_has_not_once():
    for passage, count in (("no such passage", 0), ("ema", 2)):
        with pytest.raises(ValueError, match=f"the base has {count} passages"):
            answers.edit(EMA.cell, "A hint.", (passage, ""), base=EMA)


def test_an_edit_refuses_a_base_in_another_cell_and_a_cell_that_does_not_exist():
    with pytest.raises(ValueError, match=r"03-ex1-worker-gradient: the base .* another cell, 03-ex4-ema-update"):
        answers.edit("03-ex1-worker-gradient", "A hint.", ("ema = 1", "ema = 2"), base=EMA)
    with pytest.raises(ValueError, match="has no cell '03-ex9'"):
        answers.edit("03-ex9", "A hint.", ("a", "b"))


def test_an_edit_sees_that_the_notebook_has_changed(monkeypatch, tmp_path):
    lesson, cell = "03_step", "03-ex4-ema-update"
    text = notebook.solution_path(lesson).read_text()
    (tmp_path / lesson).mkdir()
    copy = tmp_path / lesson / f"{lesson}.ipynb"
    monkeypatch.setattr(notebook, "SOLUTIONS", tmp_path)
    for number, name in enumerate(("ema_update", "ema_upgrade")):
        copy.write_text(text.replace("def ema_update(", f"def {name}("))
        os.utime(copy, ns=(number, number))
        assert answers.edit(cell, "A hint.", (f"def {name}(", "def f(")).source.startswith("def f(ema")


def test_a_topic_may_be_a_package_of_several_modules():
    package = Path(mutants.__file__).parent / "costs"
    modules = {path.stem for path in package.glob("[a-z]*.py")}
    loaded = [mutant.name for mutant in mutants.of_lesson("02_costs")]
    written = {name: importlib.import_module(f"autograder.answers.mutants.costs.{name}") for name in sorted(modules)}
    assert len(modules) > 1
    assert loaded == [name for module in written.values() for name in vars(module) if name in loaded]
    assert all(set(loaded) & set(vars(module)) for module in written.values())


def test_a_base_is_no_mutant():
    names = {name for name, value in vars(step).items() if isinstance(value, answers.Answer)}
    loaded = {mutant.name for mutant in mutants.of_lesson("08_zero1")}
    assert names - loaded == {name for name in names if name.startswith("_")} != set()


def test_an_unknown_lesson_is_one_line(capsys):
    assert main(["audit", "99_nothing"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "99_nothing" in said and "03_step" in said


def test_the_variants_are_not_the_solution():
    for lesson in notebook.lessons():
        sources = {c.id: c.source for c in notebook.read(lesson).cells}
        assert all(variant.source.strip() != sources[variant.cell].strip() for variant in variants.of_lesson(lesson))


def test_a_lesson_goes_by_its_number_and_an_exercise_by_the_start_of_its_name():
    assert audit.named(["03"]) == audit.named(["03_step"]) == [("03_step", name) for name in audit.batches("03_step")]
    assert audit.named(["08-ex3"]) == audit.named(["08-ex3-step"]) == [("08_zero1", "08-ex3-step")]
    assert len(audit.named(["03", "03-ex1"])) == len(audit.named(["03"]))
    assert {lesson for lesson, _ in audit.named([])} == set(notebook.lessons())


@pytest.mark.parametrize("name", ["08-ex9", "08-ex3-ste", "98-ex1"])
def test_an_unknown_exercise_is_one_line(capsys, name):
    assert main(["audit", name]) == 2
    assert capsys.readouterr().err.count("\n") == 1
