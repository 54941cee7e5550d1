"""The pieces that checks are made of, and the mechanism that finds the right hint."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import replace

import numpy as np
import pytest

import ranks
from autograder import checks
from autograder.answers import answer as answers
from autograder.checks import check, hints, module, stage
from autograder.checks.expect import (
    CheckFailed,
    Failure,
    Hint,
    digits_that_differ,
    expect_close,
    expect_equal,
    expect_raises,
    expect_unchanged,
)
from autograder.lesson import notebook
from ranks import processes, source
from tests.helpers import tiny_lesson
from tests.helpers.modules import import_checks

training = module("08_zero1", "training")


class EqualToAll:
    """An answer that compares equal to everything, as a cheat would."""

    def __eq__(self, other):
        return True

    __hash__ = None


#: A difference from inf is inf or nan, and no bound that inf gives is ever passed.
LOW = np.array([1.0, -np.inf])


@pytest.mark.parametrize(
    ("got", "expected", "says"),
    [
        ([1.0, 2.0, 3.0 + 1e-12], [1.0, 2.0, 3.0], None),
        ([1.0, 2.0, 4.0], [1.0, 2.0, 3.0], r"the mean is wrong at index \(2,\): got 4, expected 3"),
        ([2e-5], [1e-5], "the mean is wrong"),
        ([1.0, 2.0, 3.0], [[1.0, 2.0, 3.0]], "shape"),
        ([1.0, -np.inf], LOW, None),
        *[
            (bad, LOW, "the mean is wrong")
            for bad in ([1.0, np.inf], [1.0, np.nan], [1.0, 5.0], [2.0, -np.inf], [np.nan, -np.inf])
        ],
        (np.array(np.nan), np.nan, "nan is expected"),
        ([1.0], [1.0 + 1.0j], "wrong at index"),
        (None, [1.0, 2.0], "does the function return it"),
        ("text", [1.0, 2.0], "array of numbers"),
        ([1.0, np.nan], [1.0, 2.0], "contains nan"),
        (EqualToAll(), [1.0], "array of numbers"),
    ],
)
def test_close_arrays_pass_and_others_are_told_where_they_differ(got, expected, says):
    with contextlib.nullcontext() if says is None else pytest.raises(CheckFailed, match=says):
        expect_close("case", got, np.array(expected), what="the mean", rtol=1e-9)


def test_changed_inputs_are_noticed_to_the_bit():
    expect_unchanged("case", np.array([0.0]), np.array([0.0]), what="w")
    with pytest.raises(CheckFailed, match="w was changed in place"):
        expect_unchanged("case", np.array([0.0]), np.array([-0.0]), what="w")


def refuse(x):
    raise ValueError(f"x must be positive, got {x}")


@pytest.mark.parametrize(
    ("function", "argument", "mentions", "says"),
    [
        (refuse, -1, "x", None),
        (refuse, -1, "y", "should name 'y'"),
        (abs, -1, "", "nothing was raised"),
        (abs, "text", "", "expected ValueError, got TypeError"),
    ],
)
def test_expected_errors_are_of_one_kind_and_name_what_is_wrong(function, argument, mentions, says):
    with contextlib.nullcontext() if says is None else pytest.raises(CheckFailed, match=says):
        expect_raises("case", function, argument, error=ValueError, mentions=mentions)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ([np.array([1.0, 2.0]), "sent", 3], [np.array([1.0, 2.0 + 1e-9]), "sent", 3], True),
        ([np.array([1.0, 2.0])], [np.array([1.0, 2.1])], False),
        (np.zeros(2), np.zeros(3), False),
        (np.array([1.0, np.inf]), np.array([2.0, np.inf]), False),
        (1, True, False),
        ("1", 1, False),
        (1.0, "text", False),
        ("nan", float("nan"), False),
        ({"a": 1.0}, {"a": 1.0}, True),
        ({"a": 1}, {"b": 1}, False),
        ({"p": np.float32("nan")}, {"p": np.float32("nan")}, True),
        (np.float32("nan"), np.float32(1), False),
    ],
)
def test_evidence_is_compared_by_value_and_up_to_rounding(one, other, same):
    assert hints.same_evidence(one, other) == same


@pytest.mark.parametrize(
    ("evidence", "telling"),
    [
        *[(common, False) for common in ("nothing raised", ["sent", 1, True], {"rank": 3}, np.array([0, 2]))],
        *[(n, True) for n in (0.25, ["sent", 1, ("all_reduce", 28)], {"rank": np.array([1.5])}, -1, 10**400)],
    ],
)
def test_numbers_make_a_hint_a_fact_and_what_many_mistakes_give_does_not(evidence, telling):
    assert hints.is_telling(("2 ranks", evidence)) == telling


def forgets(x):
    return x


def adds_two(x):
    return x + 2


def two_more(y):
    """The same mistake as a student makes it."""
    return 2 + y


ADDS_TWO = Hint("adds_two", "You added two.")


@pytest.fixture
def known(monkeypatch):
    """The known answers to the exercise 00-double, a list: two mistakes that live only in this test."""
    of_exercise = [
        answers.Answer("forgets", "L", "00-double", "forgets", "You returned x.", ("00-double-test",)),
        answers.Answer("adds_two", "L", "00-double", "adds_two", "You added two.", ("00-double-test",)),
    ]
    by_source = {"forgets": forgets, "adds_two": adds_two}
    monkeypatch.setattr("autograder.answers.wrong.of_exercise", lambda exercise: of_exercise)
    monkeypatch.setattr(notebook, "functions", lambda lesson, swap: {"double": by_source[swap["00-double"]]})
    return of_exercise


@pytest.fixture
def doubling(known):
    """A check of this exercise."""

    @check.check("00-double", points=1)
    def doubles(double, *, rng):
        for case in ("first", "second"):
            x = float(rng.integers(3, 100))
            expect_close(case, double(x), np.array(2 * x), what="the double", rtol=1e-12)

    return doubles


def failure(run, *arguments):
    """How a check fails on these answers."""
    with pytest.raises(CheckFailed) as caught:
        run(*arguments)
    return caught.value


def test_the_hint_of_the_mistake_that_was_made_is_shown(doubling):
    doubling(lambda x: x + x)
    forgot = failure(doubling, lambda y: y)
    assert forgot.failure.hints == [Hint("forgets", "You returned x.")]
    assert str(forgot).endswith(" (case: first)\nHint: You returned x.")
    assert failure(doubling, two_more).failure.hints == [ADDS_TWO]


def test_an_unknown_mistake_gets_no_hint(doubling):
    unknown = failure(doubling, lambda y: 3 * y)
    assert unknown.failure.hints == [] and "Hint" not in str(unknown)


@pytest.mark.parametrize(("fails", "hint"), [(("another",), ()), (("another", "doubles"), (ADDS_TWO,))])
def test_a_known_mistake_is_not_tried_on_a_check_that_it_passes(doubling, known, fails, hint):
    known[:] = [replace(one, fails=fails) for one in known]
    assert failure(doubling, two_more).failure.hints == [*hint]


def test_no_hint_of_a_mistake_that_another_check_would_have_shown(doubling, known):
    """The known answer fails a check that this one passes: it is another mistake that looks the same here."""
    known[:] = [replace(one, fails=("doubles", "halves")) for one in known]
    with hints.later():
        failed = failure(doubling, two_more)
    assert failed.find_hints(passed=["halves"]) == () and failed.find_hints() == (ADDS_TWO,)
    (exact,) = failed.find_hints(failed=["doubles", "halves"])
    (perhaps,) = failed.find_hints(failed=["doubles", "halves", "thirds"])
    assert exact.sure and not perhaps.sure, "who fails more made another mistake, or two"


@pytest.mark.parametrize(("more", "shown"), [(0, 1), (1, 2), (2, 0)])
def test_of_too_many_mistakes_that_look_alike_none_is_named(doubling, known, more, shown):
    """The first two in the file were shown, whichever was made."""
    known += [replace(known[1], name=f"adds_{n}", hint=f"You added {n}.") for n in ("1 + 1", "4 - 2")[:more]]
    assert [hint.sure for hint in failure(doubling, two_more).failure.hints] == [shown == 1] * shown


def test_the_search_for_hints_can_be_put_off(doubling):
    with hints.later():
        failed = failure(doubling, two_more)
    assert failed.failure.hints == [] and "Hint" not in str(failed)
    assert failed.find_hints() == (ADDS_TWO,)
    assert "Hint: You added two" in str(failure(doubling, two_more))


def test_calls_that_are_made_at_once_give_what_they_give_one_by_one():
    seen = []

    def half(x):
        seen.append(x)
        if x % 2:
            raise ValueError(f"{x} is odd")
        return x // 2

    answered = stage.called_at_once(half, [(4,), (6,), (7,), (8,)])
    assert seen == [4, 6, 7]
    assert [answered(4), answered(6)] == [2, 3] and seen == [4, 6, 7]
    with pytest.raises(ValueError, match="7 is odd"):
        answered(7)
    assert answered(8) == 4 and seen == [4, 6, 7, 7, 8]


def test_an_exercise_that_is_not_written_is_told_so_without_a_hint(doubling):
    def stub(x):
        raise NotImplementedError

    unwritten = failure(doubling, stub)
    assert "not written yet" in str(unwritten) and unwritten.failure.hints == []


def test_what_a_student_prints_stays_out_of_the_feedback(doubling, capsys):
    def chatty(x):
        print("the answer is", x)
        return 2 * x

    doubling(chatty)
    assert capsys.readouterr() == ("", "")


def hidden_oracle(rank, world_size, function):
    """A driver in a hidden folder: it calls the student's function, or fails by itself."""
    return function()


@pytest.mark.parametrize(
    ("driver", "arguments", "told"),
    [(hidden_oracle, (lambda: 1 / 0,), "test_check.py, line"), (training.drive, (int, [None]), "raised")],
)
def test_no_line_of_a_test_is_told(driver, arguments, told):
    said = str(failure(stage.run_ranks, driver, 1, arguments))
    assert "training.py" not in said and told in said


@pytest.fixture
def grading():
    """Nothing that other tests have shared."""
    with hints.under(seed=None, known_failures={}):
        yield hints.grading()


def test_shared_inputs_are_tried_on_a_known_mistake_only_once(doubling, monkeypatch, grading):
    seeds, run = [], check.attempt

    def counted(body, subjects, seed, *most):
        seeds.append(seed)
        return run(body, subjects, seed, *most)

    monkeypatch.setattr(check, "attempt", counted)
    check.share_inputs()
    for _ in range(2):
        assert failure(doubling, two_more).failure.hints == [ADDS_TWO]
    assert len(seeds) == 2 + 2 and len(set(seeds)) == 1, "two answers, and each of the two known mistakes once"


def test_a_known_mistake_that_outlived_fewer_launches_is_tried_again(monkeypatch, grading):
    grading.seed = 1
    monkeypatch.setattr(notebook, "functions", lambda lesson, swap: {"x": None})
    wrong = CheckFailed("wrong in the third launch")

    def run(body, subjects, seed, launches):
        launches.count = min(3, launches.most + 1)  # it stops when it asks for one too many
        return wrong if launches.most >= 3 else None

    known = answers.Answer("m", "L", "00-x", "", "")
    tried = [hints.known_failure("00-x", forgets, ["x"], known, 1, launches, run) for launches in (2, 1, 3, 2, 5)]
    assert tried == [None, None, wrong, None, wrong]


def test_a_known_mistake_for_which_memory_was_short_is_tried_again(monkeypatch, grading):
    """A submission can fill the memory of the process, and must not take the hint from those after it."""
    grading.seed = 1
    monkeypatch.setattr(notebook, "functions", lambda lesson, swap: {"x": None})
    short, told = CheckFailed("raised MemoryError", "raised"), CheckFailed("wrong")
    short.__cause__ = MemoryError()
    failures = [short, told]
    known = answers.Answer("m", "L", "00-x", "", "")
    tried = [hints.known_failure("00-x", forgets, ["x"], known, 1, 0, lambda *_: failures.pop(0)) for _ in range(3)]
    assert tried == [short, told, told]


def test_two_numbers_are_shown_with_the_digits_in_which_they_differ():
    assert digits_that_differ(10000.3, 10000.30004) == ("10000.3", "10000.30004")
    assert digits_that_differ(1.5, 2.5) == ("1.5", "2.5")
    assert digits_that_differ(196338032.0, np.int64(196396000)) == ("196338032", "196396000")
    assert digits_that_differ(1e300, 2.0) == ("1e+300", "2")


@check.check("00-anything", points=1)
def raises_in_the_second_case(function, *, rng):
    """A property whose cases are tried one by one."""
    for case in ("simple", "odd"):
        function(case)


@pytest.mark.parametrize("module", ["autograder.checks.03_step.checks", "somewhere.else"])
def test_an_error_in_the_students_code_keeps_its_case(monkeypatch, module):
    monkeypatch.setitem(raises_in_the_second_case.__wrapped__.__globals__, "__name__", module)
    monkeypatch.setattr("autograder.answers.wrong.of_exercise", lambda exercise: [])

    def answer(case):
        return {"simple": 1}[case]

    failed = failure(raises_in_the_second_case, answer)
    case = "odd" if module.startswith("autograder.checks.") else ""
    text = "Your code raised KeyError: 'odd'"
    assert failed.failure == Failure("raised", "KeyError", text, case, check="raises_in_the_second_case")
    assert failed.compared == ("raised", ("KeyError", "'odd'")), "the same mistake in whatever case it comes"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rank 0 is computing at capstone.py, line 692", "rank 0 is computing at capstone.py, line 692"),
        ("rank 0 is computing at training.py, line 69: dist.barrier()", "rank 0 is computing at a line of the test"),
        ("rank 1 waits at Cell In[5], line 3: dist.recv(x)", "rank 1 waits at Cell In[5], line 3: dist.recv(x)"),
        ("rank 1 waits at pieces.py, line 3: dist.recv(x)", "rank 1 waits at pieces.py, line 3: dist.recv(x)"),
        (
            "  x (schedules.py, line 9)\n  y at common.py, line 8: f()",
            "  x (a line of the test)\n  y at a line of the test",
        ),
    ],
)
def test_no_message_names_a_file_of_the_grader(text, shown):
    assert stage.without_our_lines(text) == shown


def own_rank(rank, world_size):
    return rank


def test_a_limit_of_launches_holds_for_one_check_only():
    def launches(*, rng):
        stage.run_ranks(own_rank, 1, ())

    assert check.attempt(launches, (), 1, stage.Launches(most=0)) is None
    assert list(stage.run_ranks(own_rank, 1, ())) == [0]


def test_messages_quote_no_line_of_a_lessons_checks():
    """But lines of what students get with a lesson."""
    stage.run_ranks(own_rank, 1, ())
    lesson = notebook.SOLUTIONS / "17_capstone"
    assert source.place(str(lesson / "checks" / "train.py"), 3) == "a line of the test"
    assert source.place(str(lesson / "files" / "faults.py"), 1).startswith("faults.py, line 1: ")


def not_imported(rank, world_size, names):
    """Those of the modules `names` that nobody has imported before this worker."""
    return [name for name in names if name not in sys.modules]


def test_the_fork_server_imports_the_drivers_of_all_checks(monkeypatch):
    """And it keeps its one thread, without which a fork is not safe."""
    names = {module.__name__ for module in import_checks()}
    assert len(names) > 2
    monkeypatch.setattr(processes, "PRELOAD", names)
    assert ranks.run(not_imported, world_size=1, args=(sorted(names),)) == [[]]
    if sys.platform == "linux":
        assert len(os.listdir(f"/proc/{processes._server.pid}/task")) == 1


def test_a_checks_own_mistake_gets_no_hint(doubling):
    """It fails every known wrong answer in the same way, so each of their hints would fit."""

    @check.check("00-double", points=1)
    def misnamed(double, *, rng):
        double(3)
        return no_such  # noqa: F821

    failed = failure(misnamed, two_more)
    assert "The test could not judge" in str(failed)
    assert failed.failure.hints == [] and failed.failure.fault and failed.failure.check == "misnamed"


# ---- what is no check ----


def takes_no_rng(double):
    """A check."""


def takes_rng_by_position(double, rng):
    """A check."""


@pytest.mark.parametrize("body", [takes_no_rng, takes_rng_by_position])
def test_a_check_without_rng_is_refused_where_it_stands(body):
    with pytest.raises(ValueError, match=r"rng") as caught:
        check.check("00-double", points=1)(body)
    assert str(caught.value) == (
        f"tests/grader/test_check.py:{body.__code__.co_firstlineno}: {body.__name__} draws nothing: "
        "write `*, rng` at the end and draw from it, or say why not (fixed=…)"
    )
    check.check("00-double", points=1, fixed="a reason")(takes_no_rng)
    with pytest.raises(ValueError, match=r"takes rng, and says why it draws nothing \(fixed=…\)"):
        check.check("00-double", points=1, fixed="a reason")(takes_rng_by_position)


CHECK = """from autograder.checks.check import check


@check("97-ex1-twice", points=3)
def is_twice(twice, *, rng):
    \"\"\"It is twice x.\"\"\"
    twice(3)
"""


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """The file for the checks of a lesson, 97_planted."""
    monkeypatch.setattr(notebook, "ROOT", tmp_path)
    monkeypatch.setattr(notebook, "SOLUTIONS", tmp_path / "solutions")
    monkeypatch.setattr(checks, "__path__", [str(tmp_path / "solutions")])
    yield tiny_lesson.lesson(tmp_path / "solutions", "97_planted").with_name("checks.py")
    for name in [name for name in sys.modules if name.startswith("autograder.checks.97_planted")]:
        del sys.modules[name]
    for key in [key for key in check.REGISTERED if key[0].startswith("autograder.checks.97_planted")]:
        del check.REGISTERED[key]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("97-ex1-twice", "97-ex1-twise", "4: is_twice is a check of 97-ex1-twise, no exercise of 97_planted: did you "
         "mean 97-ex1-twice?"),
        ("97-ex1-twice", "89-ex1-twice", "4: is_twice is a check of 89-ex1-twice, no exercise of 97_planted: did you "
         "mean 97-ex1-twice?"),
        ("*, rng):", "*, rng:", "5: no Python: '(' was never closed: 'def is_twice(twice, *, rng:': correct it"),
        (", *, rng", "", "4: is_twice draws nothing: write `*, rng` at the end and draw from it, or say why not "
         "(fixed=…)"),
        ("points=3", "points=three", "4: NameError: name 'three' is not defined: correct it"),
        ("import check\n", "import chekc\n", "1: ImportError: cannot import name 'chekc'"),
    ],
)  # fmt: skip
def test_a_module_of_checks_that_is_wrong_is_named_with_its_line(planted, old, new, says):
    planted.write_text(CHECK.replace(old, new, 1))
    with pytest.raises(ValueError, match=r"checks\.py:\d") as caught:
        checks.refuse_checks_of_nothing("97_planted")
    said = str(caught.value)
    assert said.startswith(f"solutions/97_planted/checks.py:{says}") and "\n" not in said


def test_a_module_of_checks_that_is_right_is_read(planted):
    planted.write_text(CHECK)
    checks.refuse_checks_of_nothing("97_planted")
    assert [one.name for one in checks.of_exercise("97-ex1-twice")] == ["is_twice"]


LONG = {"step": 20, "lr": 0.116, "nested": {"list": [1, 2.0, None, True, {"deep": [1e-300]}]}, "b": "x" * 300}


@pytest.mark.parametrize(
    ("got", "said"),
    [
        (LONG | {"step": 21}, "differs at ['step']: got 21, expected 20"),
        (LONG | {"nested": {"list": [1, 2.0, None, True, {"deep": [1e-300]}, "later"]}},
         "differs at ['nested']['list'][5]: got 'later', expected nothing"),
        ({key: value for key, value in LONG.items() if key != "lr"}, "differs at ['lr']: got nothing, expected 0.116"),
        (LONG | {"b": "x" * 299 + "y"}, f"differs at ['b'] sign 299: got '{'x' * 20}y', expected '{'x' * 21}'"),
        ([1] * 300, "is [1, 1, "),
    ],
)  # fmt: skip
def test_of_long_values_that_differ_the_place_is_shown(got, said):
    """Of 400 signs each, one word differed."""
    with pytest.raises(CheckFailed) as failed:
        expect_equal("a case", got, LONG, what="the dict")
    assert failed.value.failure.message.startswith(f"the dict {said}") and len(failed.value.failure.message) < 500
