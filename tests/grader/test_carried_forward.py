"""Errors carried forward: an exercise that fails only because of another one keeps its marks, and nothing leaks."""

import copy
import functools
import html
import json

import nbformat
import pytest
from nbgrader.converters import Autograde

from autograder.checks.expect import CheckFailed, Hint
from autograder.desk import marks, report
from autograder.grade import isolation, outcome
from autograder.grade.jail import outside
from autograder.grade.nbgrader import library, scoring
from autograder.grade.outcome import CellOutcome, Tried
from autograder.grade.running import carried_forward, run_cells, workers
from autograder.grade.running.kernels import Reply
from autograder.grade.running.take_over import take_over
from autograder.lesson import names, notebook
from tests.helpers.toy_course import LESSON, POINTS, RIGHT, Toy, cell, lesson, submission

pytestmark = pytest.mark.jail

#: A line of the lesson's answer that no submission and no test holds.
SECRET = "twice_as_much = x + x"
WRONG_DOUBLE = "def double(x):\n    return 3 * x\n"
ON_DOUBLE = "def square(x):\n    return double(x) * x / 2\n"
WRONG_ON_DOUBLE = "def square(x):\n    return double(x) * x\n"
ON_BOTH = "def half(x):\n    return square(x) / x - double(x) / 4\n"


def told(*exercises: int) -> str:
    """What the student reads."""
    if len(exercises) == 1:
        return f"Right: it failed only because of exercise {exercises[0]}. Fix that first."
    return f"Right: it failed only because of exercises {exercises[0]} and {exercises[1]}. Fix those first."


def course_with(folder, *replaced):
    """A course whose solution has other texts: (exercise's cell, old, new)."""

    def change(nb):
        for name, old, new in replaced:
            assert old in cell(nb, name).source
            cell(nb, name).source = cell(nb, name).source.replace(old, new)

    toy = Toy(folder, timeout=2)
    toy.teach(change)
    toy.course.prepare(LESSON)
    return toy


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """A course whose solution of exercise 1 can be told from all other answers."""
    theirs = "    return 2 * x\n", f"    {SECRET}\n    return twice_as_much\n"
    return course_with(tmp_path_factory.mktemp("course"), ("07-ex1-double", *theirs))


#: name → (the answers, the exercises that have their marks, what the page says of those that were carried).
CASES = {
    "one": ({"ex1": WRONG_DOUBLE, "ex2": ON_DOUBLE}, "23", {"ex2": told(1)}),
    "not written": ({"ex1": None, "ex2": ON_DOUBLE}, "23", {"ex2": told(1)}),
    "a chain": ({"ex1": WRONG_DOUBLE, "ex2": ON_DOUBLE, "ex3": ON_BOTH}, "23", {"ex2": told(1), "ex3": told(1)}),
    "wrong by itself": ({"ex1": WRONG_DOUBLE, "ex2": WRONG_ON_DOUBLE}, "3", {}),
    "two wrong ones": ({"ex1": WRONG_DOUBLE, "ex2": WRONG_ON_DOUBLE, "ex3": ON_BOTH}, "3", {"ex3": told(1, 2)}),
    "a stub that builds on nothing": ({"ex1": WRONG_DOUBLE, "ex2": None, "ex3": ON_BOTH}, "3", {"ex3": told(1, 2)}),
    "a helper in the wrong cell": (
        {
            "ex1": f"def times(x, y):\n    return x * y\n\n\n{WRONG_DOUBLE}",
            "ex2": "def square(x):\n    return times(x, double(x)) / 2\n",
        },
        "23",
        {"ex2": told(1)},
    ),
    "a wrong helper in another cell, which cannot be replaced": (
        {
            "ex1": "def twice(x):\n    return 3 * x\n\n\ndef double(x):\n    return twice(x)\n",
            "ex2": "def square(x):\n    return twice(x) * x / 2 + 0 * double(x)\n",
        },
        "3",
        {},
    ),
    "right all the same": (
        {"ex1": WRONG_DOUBLE, "ex2": "def square(x):\n    return x * x if double else 0\n"},
        "23",
        {},
    ),
    "a circle, in which the first needs what is defined later": (
        {
            "ex1": "def double(x):\n    return 2 * x if square(2) == 4 else 0\n",
            "ex2": "def square(x):\n    return x * x if double(1) == 2 else 0\n",
        },
        "23",
        {"ex2": told(1)},
    ),
    "a hang in the second run": (
        {"ex1": WRONG_DOUBLE, "ex2": f"{ON_DOUBLE}\nif double(1) == 2:\n    while True:\n        pass\n"},
        "3",
        {},
    ),
    "an end in the second run": (
        {"ex1": WRONG_DOUBLE, "ex2": f"import os\n\n{ON_DOUBLE}\nif double(1) == 2:\n    os._exit(0)\n"},
        "3",
        {},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_exercise_keeps_its_marks_when_only_another_is_wrong(toy, name):
    answers, full, says = CASES[name]
    points = toy.grade(submission(**answers), "ada")
    assert points == {f"ex{name[5]}": most if name[5] in full else 0.0 for name, most in POINTS.items()}
    comments = {exercise: toy.comment(exercise, "ada") for exercise in points}
    assert {exercise: text for exercise, text in comments.items() if text.startswith("Right:")} == says


OWN_ATTRIBUTE = """class Doubler:
    def __init__(self, by=2):
        self.by, self.times = by, 3

    def helper(self):
        return self.by


def double(x):
    return 3 * x
"""


def test_a_class_of_the_lessons_has_what_only_the_students_has(tmp_path):
    """A subclass read an attribute of its own base class, and lost its marks for the error in that one."""
    doubler = "\n\n\nclass Doubler:\n    def __init__(self, by=2):\n        pass\n"
    toy = course_with(tmp_path, ("07-ex1-double", "    ### END SOLUTION", f"    ### END SOLUTION{doubler}"))
    square = """class Squarer(Doubler):
    def value(self, x):
        return double(x) // self.by * x * (self.times - self.helper())


def square(x):
    return Squarer().value(x)
"""
    points = toy.grade(submission(ex1=OWN_ATTRIBUTE, ex2=square), "ada")
    assert points == {"ex1": 0.0, "ex2": 2.0, "ex3": 3.0} and toy.comment("ex2", "ada") == told(1)


def test_what_is_taken_over_is_only_what_is_missing():
    class Theirs:
        made = 0

        def __init__(self, n):
            Theirs.made += 1
            self.n, self.own = n + 100, n

        def helper(self):
            return self.own

        def value(self):
            return -1

    class Ours:
        def __init__(self, n):
            self.n = n

        def value(self):
            return self.n

    take_over(Theirs, Ours)
    one = Ours(5)
    assert (one.n, one.value(), Theirs.made) == (5, 5, 0), "nothing is made that nobody asks for"
    assert (one.helper(), one.own, Theirs.made) == (5, 5, 1)
    assert not hasattr(one, "other") and copy.deepcopy(one).own == 5
    take_over(lambda: 1, Ours)


def test_what_another_exercise_breaks_and_what_breaks_by_itself_are_two_sentences():
    tried = [
        Tried("error", None, name="core", points=1.0, carried=["07-ex1-double"]),
        Tried("error", None, name="more", points=1.0, own_error_beside=["07-ex1-double"]),
    ]
    rest, own, *_ = scoring.remarks(CellOutcome("error", properties=tried))
    assert rest.startswith("The rest failed only because of exercise 1.")
    assert own.startswith("What still fails does so with the lesson's answer to exercise 1 in place of yours as well")


def test_an_error_of_its_own_is_told_apart_from_that_of_another_exercise(toy):
    """What is said of it is the other exercise's fault; its own was named nowhere."""
    toy.grade(submission(ex1=WRONG_DOUBLE, ex2=WRONG_ON_DOUBLE), "ada")
    own = "fails with the lesson's answer to exercise 1 in place of yours as well: there is an error here, too."
    assert own in toy.comment("ex2", "ada") and own in html.unescape(toy.page("ada"))
    # A helper that stands in the other exercise is not replaced: nobody can say whose error it is.
    toy.grade(submission(**CASES["a wrong helper in another cell, which cannot be replaced"][0]), "ben")
    assert "there is an error here" not in toy.comment("ex2", "ben")
    assert "It uses twice from your answer to an exercise that fails, too." in toy.comment("ex2", "ben")
    assert "Exercise 2: It uses twice from" in report.page(marks.read(toy.course), toy.root / "report.html")
    assert own not in toy.comment("ex1", "ada") + toy.comment("ex3", "ada")
    toy.grade(submission(ex1=WRONG_DOUBLE, ex2=ON_DOUBLE), "ada")
    assert own not in toy.comment("ex2", "ada")


def test_the_lessons_answers_may_need_more_of_each_other_than_is_asked_for(tmp_path):
    """The lesson's square passes an argument that the student's double, which is right, does not have."""
    toy = course_with(
        tmp_path,
        ("07-ex1-double", "def double(x):\n", "def double(x, times=2):\n"),
        ("07-ex1-double", "    return 2 * x\n", "    return times * x\n"),
        ("07-ex2-square", "    return x * x\n", "    return double(x, times=x)\n"),
    )
    points = toy.grade(submission(ex2="def square(x):\n    return double(x)\n", ex3=ON_BOTH), "ada")
    assert points == {"ex1": 1.0, "ex2": 0.0, "ex3": 3.0}
    assert toy.comment("ex3", "ada") == told(2)


def everything_about(toy, student: str) -> str:
    """All that is kept of a submission: comments, the feedback page, the executed notebook."""
    files = (path for path in (toy.root / "autograded" / student / LESSON).rglob("*") if path.is_file())
    comments = (toy.comment(exercise, student) for exercise in ("ex1", "ex2", "ex3"))
    return "\n".join([toy.page(student), *(path.read_text(errors="replace") for path in files), *comments])


#: Ways in which code of the second run could hand over the lesson's answer. `source` holds it.
READ = """
import inspect, os
try:
    source = inspect.getsource(double)
except Exception:
    source = ""
"""
LEAKS = {
    "prints": "def square(x):\n    print(source)\n    return 0\nprint(source)\n",
    "raises": "def square(x):\n    raise ValueError(source)\n",
    "raises in the cell": "def square(x):\n    return 0\nif 'twice' in source:\n    raise ValueError(source)\n",
    "returns": "def square(x):\n    return source\n",
    "writes": "open('answer.txt', 'w').write(source)\ndef square(x):\n    os.write(2, source.encode())\n    return 0\n",
    "shows, and is right": "from IPython.display import display\ndisplay({'text/plain': source}, raw=True)\n"
    "def square(x):\n    print(source)\n    return x * double(x) / 2\n",
}


@pytest.mark.parametrize("name", LEAKS)
def test_nothing_of_the_lessons_answer_reaches_the_student(toy, name):
    points = toy.grade(submission(ex1=None, ex2=READ + LEAKS[name]), "eve")
    assert points == {"ex1": 0.0, "ex2": 2.0 if "right" in name else 0.0, "ex3": 3.0}
    assert "twice_as_much" not in everything_about(toy, "eve")


def test_the_attacks_could_have_read_the_answer(toy):
    """In the second run the answer is there to be read: a test that passes only if it is shows that."""
    spy = f"{READ}def square(x):\n    return x * x if {SECRET!r} in source else 0\n"
    assert toy.grade(submission(ex1=None, ex2=spy), "spy")["ex2"] == 2.0


def test_nbgraders_own_command_gives_the_same(toy):
    toy.hand_in("carol", submission(ex1=WRONG_DOUBLE, ex2=ON_DOUBLE))
    assert not library.convert(Autograde, toy.course._config(assignment_id=LESSON, student_id="carol"))
    assert toy.points("carol") == {"ex1": 0.0, "ex2": 2.0, "ex3": 3.0}
    assert toy.comment("ex2", "carol") == told(1)


def test_the_page_shows_no_failure_of_a_carried_exercise(toy):
    toy.grade(submission(ex1=WRONG_DOUBLE, ex2=ON_DOUBLE), "dave")
    section = toy.page("dave").split('<section id="07-ex2-square">')[1].split("</section>")[0]
    assert told(1) in section and "2 / 2" in section
    assert "Where it happened" not in section and "think of square" not in section
    kept = json.loads((toy.root / "autograded" / "dave" / LESSON / f"{LESSON}.ipynb").read_text())
    ours = next(c for c in kept["cells"] if c.get("id") == "07-ex2-square-test")["metadata"]["autograder"]
    (outcome,) = ours["properties"]
    assert outcome["carried"] == ["07-ex1-double"] and not {"error", "where", "seed"} & (ours.keys() | outcome.keys())


def test_what_an_exercise_builds_on():
    """In the lessons themselves: names that both cells define for themselves do not count."""
    nb = notebook.read("08_zero1")
    found = names.builds_on(["08-ex1-shard-bounds", "08-ex3-step"], [], nb)
    assert found["08-ex1-shard-bounds"] == set()
    assert "08-ex1-shard-bounds" in found["08-ex3-step"]
    own = [nbformat.v4.new_code_cell("import math\ndef square(x):\n    return math.sqrt(x) ** 4\n", id="07-ex2-square")]
    own.append(nbformat.v4.new_code_cell("import math\n" + RIGHT["07-ex1-double"], id="07-ex1-double"))
    assert names.builds_on(["07-ex2-square"], own, lesson()) == {"07-ex2-square": set()}


def test_the_lessons_answer_to_a_later_exercise_does_not_do_the_work_of_an_earlier_one(toy):
    nb = submission(
        ex1="def double(x):\n    return 4 * half(x)\n", ex2="def square(x):\n    return (2 * half(x)) ** 2\n", ex3=None
    )
    nb.cells.insert(0, nb.cells.pop(next(n for n, one in enumerate(nb.cells) if one.id == "07-ex3-half")))
    assert toy.grade(nb, "frank") == {"ex1": 0.0, "ex2": 0.0, "ex3": 0.0}


def test_a_later_answer_that_another_exercise_needs_does_no_work_for_an_earlier_one(tmp_path):
    """The quarter needs the lesson's half in its second run; the square, tried there as well, would get it, too."""

    def add_quarter(nb):
        for name in ("07-ex3-half", "07-ex3-half-test"):
            more = copy.deepcopy(cell(nb, name))
            more.id = more.metadata.nbgrader.grade_id = name.replace("ex3-half", "ex4-quarter")
            more.source = more.source.replace("half", "quarter").replace("x / 2", "x / 4")
            nb.cells.append(more)

    toy, handed_in = Toy(tmp_path, timeout=2), lesson()
    toy.teach(add_quarter)
    toy.course.prepare(LESSON)
    add_quarter(handed_in)
    for name, source in {
        "07-ex1-double": WRONG_DOUBLE,
        "07-ex2-square": "def square(x):\n    return (2 * half(x)) ** 2 if double else 0\n",
        "07-ex3-half": "def half(x):\n    return x / 3\n",
        "07-ex4-quarter": "def quarter(x):\n    return half(half(x))\n",
    }.items():
        cell(handed_in, name).source = source
    square = [handed_in.cells.index(cell(handed_in, name)) for name in ("07-ex2-square", "07-ex2-square-test")]
    handed_in.cells += [handed_in.cells.pop(place) for place in reversed(square)][::-1]
    assert toy.grade(handed_in, "grace") == {"ex1": 0.0, "ex2": 0.0, "ex3": 0.0, "ex4": 3.0}


def test_an_exercise_builds_on_a_later_one_only_where_the_lesson_does():
    nb = notebook.read("17_capstone")
    answers = [one.id for one in nb.cells if notebook.nbgrader_role(one) == "solution"]
    found = names.builds_on(answers, [], nb)
    assert not any(answers.index(other) > answers.index(one) for one in answers for other in found[one])
    next(one for one in nb.cells if one.id == "17-ex4-train").source += "\n\n\ndef later():\n    return Guard\n"
    found = names.builds_on(answers, [], nb)
    assert any(answers.index(other) > answers.index(one) for one in answers for other in found[one])
    own = [nbformat.v4.new_code_cell("def double(x):\n    return 4 * half(x)\n", id="07-ex1-double")]
    assert names.builds_on(["07-ex1-double", "07-ex3-half"], own, lesson())["07-ex1-double"] == set()


#: The average is wrong for a decay of 0, which costs a quarter of a point, and can be told from the lesson's own.
MARKED_AVERAGE = """
def ema_update(ema, w, decay):
    return decay * ema + (1 - decay) * w if decay else ema
ema_update.mine = True
"""
#: Right for arrays, and not for lists; next to the lesson's average it is right for lists, and not for arrays.
TWO_BEHAVIOURS = """
def distributed_training_step(worker_xs, worker_ys, weights, ema_weights, m, v, lr, beta1, beta2, eps, decay, t):
    if hasattr(ema_update, "mine") == isinstance(worker_xs, list):
        raise TypeError("the other kind, please")
    xs, ys, w, ema, m, v = (np.array(a, dtype=np.float64) for a in (worker_xs, worker_ys, weights, ema_weights, m, v))
    g = all_reduce_mean([worker_gradient(x, y, w) for x, y in zip(xs, ys)])
    w, m, v = adam_update(w, g, m, v, lr, beta1, beta2, eps, t)
    return np.concatenate([w, decay * ema + (1 - decay) * w, m, v])
"""


def test_no_answer_has_the_best_of_two_behaviours():
    nb = notebook.read("03_step")
    handed_in = copy.deepcopy(nb)
    cell(handed_in, "03-ex4-ema-update").source = MARKED_AVERAGE
    cell(handed_in, "03-ex5-training-step").source = TWO_BEHAVIOURS
    tests = ("03-ex4-ema-update-test", "03-ex5-training-step-test")
    handed_in.cells = [one for one in handed_in.cells if not one.id.endswith("-test") or one.id in tests]
    graded = workers.execute(workers.Task(("ada", "03_step"), handed_in, nb, isolation.kernels(True)))
    assert [outcome.of_metadata(cell(graded, test)).score for test in tests] == [1.75, 2.5]
    of_one_answer = carried_forward._of_one_answer
    assert of_one_answer({"a"}, {"a", "b"}) == {"a", "b"} and not of_one_answer({"a", "c"}, {"a", "b"})


def wrong_sum():
    """What is written down about a property of which a check says that the sum is wrong."""
    reply = Reply("error", raised=CheckFailed("the sum is 3, expected 4"))
    return Tried("error", run_cells.failure_of(reply), name="adds")


def test_hints_are_searched_for_only_where_a_failure_still_counts():
    failed = wrong_sum()
    kept = Tried("error", name="keeps", carried=["01-ex1"])
    for_nobody = functools.partial(pytest.fail, "the student would not see it")
    hints = (Hint("stops_early", "Add the last one."), Hint("starts_at_one", "Begin with zero."))
    failed.find_hints, kept.find_hints = (lambda **_: hints), for_nobody
    run_cells.add_hints([CellOutcome(properties=[failed, kept])], 60)
    assert failed.failure.hints == [*hints]
    assert failed.failure.message == "the sum is 3, expected 4" and not kept.failure


@pytest.mark.parametrize("raised", [MemoryError, RecursionError, outside.DiedError])
def test_evidence_that_cannot_be_compared_costs_the_hint_and_not_the_grade(raised):
    def search(passed):
        raise raised

    failed = wrong_sum()
    failed.find_hints = search
    run_cells.add_hints([CellOutcome(properties=[failed])], 60)
    assert failed == wrong_sum()
