"""A class of attackers is graded like any other: each gets what the honest part is worth, and nobody else notices."""

from __future__ import annotations

import functools
import pickle
from types import SimpleNamespace

import pytest

from tests.attacks import catalog, course, lessons, table
from tests.attacks.attack import FULL, fill
from tests.helpers import toy_course

pytestmark = pytest.mark.jail

#: Who is in it, the seconds that a cell has, and those that all have.
CLASSES = {
    "some": (catalog.SAMPLE, 5, 600),
    "functions": (catalog.QUICK, 5, 600),
    "ranks": (catalog.RANKS, 60, 900),
    "runs": (catalog.RUNS, 60, 900),
}
MARKS = {name: [] if name == "some" else [pytest.mark.slow, pytest.mark.thorough] for name in CLASSES}


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """What came of a class of attackers, by its name. Each class is graded once."""

    @functools.cache
    def run(name):
        attacks, timeout, limit = CLASSES[name]
        return course.Run(course.Machine(tmp_path_factory.mktemp(name)).build(attacks, timeout), limit)

    return run


@pytest.mark.parametrize(
    ("name", "attack"),
    [
        pytest.param(name, attack, id=f"{name}-{attack.name}", marks=MARKS[name])
        for name, (attacks, _, _) in CLASSES.items()
        for attack in attacks
    ],
)
def test_an_attacker_gets_what_the_honest_part_is_worth(graded, name, attack):
    run = graded(name)
    student = next(who for who, other in run.machine.roster.items() if other and other.name == attack.name)
    assert run.points(student, attack.lesson) == attack.worth
    for exercise, points in attack.worth.items():
        why = run.comment(student, attack.lesson, exercise)
        assert points or why, f"{exercise} has no points and no reason"
        assert "ask your instructor" not in why
    if attack.after:
        page = run.machine.course / "feedback" / student / attack.lesson / f"{attack.lesson}.html"
        attack.after(SimpleNamespace(run=run, page=page.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS[name]) for name in CLASSES])
def test_the_run_finishes_and_nobody_else_notices(graded, name):
    run = graded(name)
    assert run.status == 0
    assert run.result["problems"] == []
    assert run.changed == []
    assert run.heard == []
    assert not run.left, "processes were left"
    assert run.temporary == []
    honest = [student for student, attack in run.machine.roster.items() if attack is None]
    attackers = len(run.machine.roster) - len(honest)
    assert len(honest) == 1 - -attackers // course.HONEST_EVERY, "one at each end, and one after each few"
    for student in honest:
        for lesson in run.machine.lessons():
            assert run.points(student, lesson) == lessons.full(lesson), (student, lesson)
    toy = run.machine.toy()
    with toy.course.gradebook() as gradebook:
        handed_in = {student for student, _, _ in toy.course.scores()}
        assert {student.id for student in gradebook.students} == handed_in == set(run.machine.roster)
        for submission in (one for lesson in run.machine.lessons() for one in gradebook.assignment_submissions(lesson)):
            assert submission.max_score == sum(lessons.full(submission.name).values())
            for grade in submission.notebooks[0].grades:
                assert grade.manual_score is None and not grade.extra_credit and not grade.needs_manual_grade


# --- the attacks are real -------------------------------------------------------------------------------


def test_each_attack_has_a_name_of_its_own():
    names = [attack.name for attack in catalog.ATTACKS]
    assert len(set(names)) == len(names) >= 50


def test_the_page_of_the_book_says_what_is_known():
    assert table.PAGE.read_text(encoding="utf-8") == table.page(), "run python -m tests.attacks.table --page"


@pytest.mark.parametrize("name", ["pickle-bomb", "pickle-bomb-inside", "object-arrays"])
def test_a_bomb_explodes_where_it_is_unpickled(name, tmp_path):
    import cloudpickle

    nb = lessons.right(toy_course.LESSON)
    catalog.find(name).make(nb)
    source = fill(toy_course.cell(nb, "07-ex2-square").source, {"HOME": str(tmp_path)})
    names = {"__name__": "__main__"}
    exec(source, names)
    pickle.loads(cloudpickle.dumps(names["square"](2)))
    assert (tmp_path / "pickled").exists()


def test_the_honest_part_of_an_attack_is_honest():
    for attack in catalog.ATTACKS:
        assert all(points in (0.0, lessons.full(attack.lesson)[name]) for name, points in attack.worth.items())
    assert lessons.full(toy_course.LESSON) == FULL
