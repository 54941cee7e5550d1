"""A class of attackers is graded like any other: each gets what the honest part is worth, and nobody else notices."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest

from tests.attacks import catalog, course, lessons, table
from tests.attacks.attack import FULL, fill
from tests.helpers import toy_course

pytestmark = pytest.mark.jail

each = pytest.mark.parametrize("attack", catalog.QUICK, ids=lambda attack: attack.name)
each_of_some = pytest.mark.parametrize("attack", catalog.SAMPLE, ids=lambda attack: attack.name)

each_of_runs = pytest.mark.parametrize("attack", catalog.RUNS, ids=lambda attack: attack.name)
each_on_ranks = pytest.mark.parametrize("attack", catalog.RANKS, ids=lambda attack: attack.name)


@pytest.fixture(scope="module")
def graded_some(tmp_path_factory):
    """A class with some of the attackers on single functions, graded once."""
    machine = course.Machine(tmp_path_factory.mktemp("class")).build(catalog.SAMPLE, timeout=5)
    return course.Run(machine, timeout=600)


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """The class whose exercises are single functions, graded once."""
    machine = course.Machine(tmp_path_factory.mktemp("class")).build(catalog.QUICK, timeout=5)
    return course.Run(machine, timeout=600)


@pytest.fixture(scope="module")
def graded_ranks(tmp_path_factory):
    """The class whose exercises run on ranks, graded once."""
    machine = course.Machine(tmp_path_factory.mktemp("class")).build(catalog.RANKS, timeout=60)
    return course.Run(machine, timeout=900)


@pytest.fixture(scope="module")
def graded_runs(tmp_path_factory):
    """The class whose exercises train on ranks, graded once."""
    machine = course.Machine(tmp_path_factory.mktemp("class")).build(catalog.RUNS, timeout=60)
    return course.Run(machine, timeout=900)


def student_of(run, attack):
    return next(student for student, other in run.machine.roster.items() if other and other.name == attack.name)


def expect_worth(run, attack):
    student = student_of(run, attack)
    assert run.points(student, attack.lesson) == attack.worth
    for exercise, points in attack.worth.items():
        why = run.comment(student, attack.lesson, exercise)
        assert points or why, f"{exercise} has no points and no reason"
        assert "ask your instructor" not in why
    if attack.after:
        page = run.machine.course / "feedback" / student / attack.lesson / f"{attack.lesson}.html"
        attack.after(SimpleNamespace(run=run, page=page.read_text(encoding="utf-8")))


def expect_peace(run):
    """The run has finished, and everybody but the attackers is as well off as before."""
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


@each_of_some
def test_some_attackers_get_what_the_honest_part_is_worth(graded_some, attack):
    expect_worth(graded_some, attack)


def test_nobody_else_notices_some_attackers(graded_some):
    expect_peace(graded_some)


@pytest.mark.slow
@pytest.mark.thorough
@each
def test_an_attacker_gets_what_the_honest_part_is_worth(graded, attack):
    expect_worth(graded, attack)


@pytest.mark.slow
@pytest.mark.thorough
def test_nobody_else_notices(graded):
    expect_peace(graded)


@pytest.mark.slow
@pytest.mark.thorough
@each_on_ranks
def test_an_attacker_on_ranks_gets_what_the_honest_part_is_worth(graded_ranks, attack):
    expect_worth(graded_ranks, attack)


@pytest.mark.slow
@pytest.mark.thorough
def test_nobody_else_notices_the_attackers_on_ranks(graded_ranks):
    expect_peace(graded_ranks)


@pytest.mark.slow
@pytest.mark.thorough
@each_of_runs
def test_an_attacker_on_runs_gets_what_the_honest_part_is_worth(graded_runs, attack):
    expect_worth(graded_runs, attack)


@pytest.mark.slow
@pytest.mark.thorough
def test_nobody_else_notices_the_attackers_on_runs(graded_runs):
    expect_peace(graded_runs)


# --- the attacks are real -------------------------------------------------------------------------------


def test_each_attack_has_a_name_and_says_what_it_tries():
    names = [attack.name for attack in catalog.ATTACKS]
    assert len(set(names)) == len(names) >= 50
    for attack in catalog.ATTACKS:
        assert attack.tries.endswith(".") and len(attack.tries) < 160, attack.name


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
