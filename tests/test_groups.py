"""Students who hand in together: one notebook counts for both, in the gradebook and everywhere that follows it."""

import json
import os
import shutil

import nbformat
import pytest

from autograder.__main__ import main
from autograder.grading.course import Course
from autograder.grading.nbgrader import groups, late, submission_files
from autograder.insight import copies, lms, marks, report
from autograder.lessons import course_settings, nbgrader_api
from tests.helpers.formgrader_server import Server
from tests.helpers.graded_class import WRONG as FAILED
from tests.helpers.graded_class import fill
from tests.helpers.toy_course import LESSON, Toy, cell, lesson, submission

WRONG = "def square(x):\n    return 0\n"
PAIR = 'groups = """\nada, ben\n"""\n'
SQUARE = "07-ex2-square-test"


# --- course.toml ------------------------------------------------------------------------------------------


def settings(folder, text):
    (folder / "course.toml").write_text(text)
    return course_settings.of(folder)


def test_groups_are_lines_of_logins_and_a_lesson_can_have_its_own(tmp_path):
    text = 'groups = """\n\nada, ben\ncyd;dan\neve\tfay  \ngus hal\nEva Ruiz, Jose\u0301\n"""\n'
    own = settings(tmp_path, text + '[lessons.03]\n[lessons.04]\ngroups = "ada,cyd"\n[lessons.05]\ngroups = ""')
    pairs = (("ada", "ben"), ("cyd", "dan"), ("eve", "fay"), ("gus", "hal"), ("Eva Ruiz", "Jos\u00e9"))
    assert own.of("03_step").groups == pairs and own.group("ben", "03_step") == ("ada", "ben")
    assert own.of("04_accumulation").groups == (("ada", "cyd"),) and own.of("05_ddp").groups == ()
    assert own.group("ada", "04_accumulation") == ("ada", "cyd") and own.group("ben", "04_accumulation") == ("ben",)
    assert settings(tmp_path, 'groups = "ada ben cyd"').others.groups == (("ada", "ben", "cyd"),), "one more than even"


# --- which hand-in counts ---------------------------------------------------------------------------------


@pytest.fixture
def toy(tmp_path):
    """A course in which ada and ben are a group. Nothing is handed in yet; what `mark` grades runs no kernel."""
    toy = Toy(tmp_path)
    toy.course.jail = False
    settings(toy.root, PAIR)
    return toy


def hand_in(toy, student, day, **answers):
    """A notebook with a time of its own; without a day, with that of the file."""
    path = toy.hand_in(student, submission(**answers))
    if day:
        (path.parent / "timestamp.txt").write_text(f"2026-05-{day:02} 12:00:00 UTC")
    return path


def mark(toy, student, source=None, **found):
    """Grade what a student has handed in, as if these tests had failed; the answer to exercise 2 is `source`."""
    fill(toy, student, **found)
    path = toy.root / "autograded" / student / LESSON / f"{LESSON}.ipynb"
    nb = nbformat.read(path, 4)
    if source:
        cell(nb, SQUARE[:-5]).source = source
        nbformat.write(nb, path)
    when = submission_files.submitted_at(submission_files.exchange_files(toy.root / "submitted" / student / LESSON))
    with toy.course.gradebook() as gradebook:
        gradebook.update_or_create_submission(LESSON, student, **({"timestamp": when} if when else {}))
        groups.share(gradebook, toy.root, (student, LESSON))


def enter(toy, student, score=None, comment=None):
    """What the formgrader writes when a person grades exercise 2."""
    with toy.course.gradebook() as gradebook:
        found = gradebook.find_grade(SQUARE, LESSON, LESSON, student)
        found.manual_score, found.needs_manual_grade = score, False
        gradebook.find_comment(SQUARE[:-5], LESSON, LESSON, student).manual_comment = comment
        gradebook.db.commit()


def state(toy):
    """student → points, points by hand and comment by hand for exercise 2, and whether it waits for a person."""
    with toy.course.gradebook() as gradebook:
        students = [one.student.id for one in gradebook.assignment_submissions(LESSON)]
        found = {one: gradebook.find_grade(SQUARE, LESSON, LESSON, one) for one in students}
        comments = {one: gradebook.find_comment(SQUARE[:-5], LESSON, LESSON, one).manual_comment for one in students}
        return {
            one: (grade.score, grade.manual_score, comments[one], grade.needs_manual_grade)
            for one, grade in found.items()
        }


def test_the_newest_of_two_counts_and_the_other_is_named(toy, capsys):
    hand_in(toy, "ada", 2, ex2=WRONG)
    hand_in(toy, "ben", 1)
    assert toy.course.handed_in_by() == {("ada", LESSON): "ada", ("ben", LESSON): "ada"}
    assert list(toy.course._of_groups()) == [
        "submitted/ben/07_toy does not count: ada has handed in a newer notebook for the same group; "
        "remove submitted/ada/07_toy to grade this one instead"
    ]
    hand_in(toy, "ben", 3)
    assert toy.course._gradable(None) == [("ben", LESSON)]
    said = groups.words(toy.root, toy.course.own, "ada", LESSON)
    assert said == "Handed in by ben; it counts for ada and ben. What ada handed in is older and does not count."
    hand_in(toy, "ada", 2)
    assert not list(toy.course._of_groups()), "the same notebook, as systems deliver it for each member"


def test_without_times_the_newest_file_counts_and_an_empty_folder_never(toy):
    old, new = hand_in(toy, "ada", 0), hand_in(toy, "ben", 0)
    os.utime(old, (1000, 1000))
    os.utime(new, (2000, 2000))
    assert toy.course._gradable(None) == [("ben", LESSON)]
    os.utime(old, (3000, 3000))
    assert toy.course._gradable(None) == [("ada", LESSON)]
    new.unlink()
    (new.parent / "timestamp.txt").write_text("2026-05-09 12:00:00 UTC")
    assert toy.course._gradable(None) == [("ada", LESSON)]


def test_an_unknown_login_is_told_with_the_nearest_known_one(toy):
    hand_in(toy, "ada", 1)
    hand_in(toy, "cyd", 1)
    settings(toy.root, 'groups = "ada, cydd"')
    (line,) = toy.course._of_groups()
    assert line.startswith("course.toml: groups: no work of a student 'cydd' yet, and no such name in the gradebook")
    assert "did you mean cyd? If it is right: nbgrader db student add cydd --last-name NAME" in line
    mark(toy, "ada")
    assert list(toy.course._of_groups()) == [line], "a copy of a grade makes nobody known"
    with toy.course.gradebook() as gradebook:
        gradebook.update_or_create_student("cydd", last_name="Dd")
    assert not list(toy.course._of_groups())
    settings(toy.root, 'groups = """' + "\n".join(f"x{number}, y{number}" for number in range(9)) + '"""')
    assert list(toy.course._of_groups())[10:] == ["… and 8 more logins in groups of which nothing is known"]


def test_one_of_a_group_can_be_named_who_has_handed_in_nothing(toy):
    hand_in(toy, "ada", 1)
    hand_in(toy, "cyd", 1)
    assert Course(toy.root, only=["ben"])._gradable(None) == [("ada", LESSON)]


# --- points by hand ---------------------------------------------------------------------------------------


def test_points_and_comments_for_either_member_count_for_both(toy):
    hand_in(toy, "ada", 1)
    mark(toy, "ada", ex2=FAILED)
    assert state(toy) == {"ada": (0, None, None, False), "ben": (0, None, None, False)}
    enter(toy, "ada", 1.5, "Sign.")
    assert squares(toy) == {"ada": 1.5, "ben": 1.5}, "at once"
    assert state(toy) == {"ada": (1.5, 1.5, "Sign.", False), "ben": (1.5, 1.5, "Sign.", False)}
    enter(toy, "ben", 2.0, "Sign.")
    toy.course.share()
    assert state(toy)["ada"] == state(toy)["ben"] == (2, 2, "Sign.", False)
    enter(toy, "ada")
    toy.course.share()
    assert state(toy)["ada"] == state(toy)["ben"] == (0, None, None, False), "taken back, and not given once more"


def squares(toy):
    """student → the points for exercise 2 that the report has."""
    found = marks.read(toy.course).submissions
    return {one.student: mark.score for one in found for mark in one.marks if mark.exercise == SQUARE[:-5]}


def test_different_points_for_the_two_are_refused_and_both_stay(toy):
    hand_in(toy, "ada", 1)
    mark(toy, "ada", ex2=FAILED)
    enter(toy, "ada", 1.5)
    enter(toy, "ben", 1.0)
    (line,) = toy.course.share()
    assert line == (
        "07_toy: ada and ben are a group, and what was entered by hand for 07-ex2-square differs (ada: 1.5, ben: 1): "
        "enter the same for both in formgrader, or take it back for one"
    )
    assert state(toy)["ada"][1] == 1.5 and state(toy)["ben"][1] == 1.0
    enter(toy, "ben", 1.5)
    assert not toy.course.share()


def test_points_outlive_a_newer_notebook_of_the_other_one(toy):
    """They are flagged if the answer is another one, as with a student who works alone."""
    hand_in(toy, "ada", 1)
    mark(toy, "ada", WRONG, ex2=FAILED)
    enter(toy, "ada", 1.5, "Sign.")
    hand_in(toy, "ben", 2)
    assert not toy.course.share()
    (path,) = toy.root.glob("autograded/*/*/*.ipynb")
    assert path.parent.parent.name == "ben" and cell(nbformat.read(path, 4), SQUARE[:-5]).source == WRONG
    assert state(toy)["ada"] == state(toy)["ben"] == (1.5, 1.5, "Sign.", False)


def test_who_become_a_group_after_both_were_graded_keep_what_was_entered(toy):
    settings(toy.root, "")
    for day, student in enumerate(("ada", "ben"), start=1):
        hand_in(toy, student, day)
        mark(toy, student, WRONG if student == "ada" else None, ex2=FAILED)
    enter(toy, "ada", 1.5)
    settings(toy.root, PAIR)
    assert not toy.course.share()
    assert state(toy) == {"ada": (1.5, 1.5, None, False), "ben": (1.5, 1.5, None, True)}, "flagged: another answer"
    assert [path.parent.parent.name for path in toy.root.glob("autograded/*/*/*.ipynb")] == ["ben"]


def test_who_is_alone_again_or_in_another_group_keeps_nothing_of_the_first(toy):
    hand_in(toy, "ada", 2)
    hand_in(toy, "ben", 1)
    hand_in(toy, "cyd", 1)
    mark(toy, "ada", ex2=FAILED)
    enter(toy, "ada", 1.5, "Sign.")
    toy.course.share()
    settings(toy.root, 'groups = "ben, cyd"')
    mark(toy, "cyd", ex2=FAILED)
    toy.course.share()
    assert state(toy)["ada"] == (1.5, 1.5, "Sign.", False)
    assert state(toy)["ben"][1:3] == state(toy)["cyd"][1:3] == (None, None)
    settings(toy.root, 'groups = "ada, dan"')
    toy.course.share()
    assert state(toy)["dan"] == state(toy)["ada"]
    settings(toy.root, "")
    toy.course.share()
    assert "dan" not in state(toy) and state(toy)["ada"][1] == 1.5


@pytest.mark.parametrize("at", ["write_whole", "rename"])
def test_nothing_is_lost_if_the_grader_ends_in_between(toy, monkeypatch, at):
    hand_in(toy, "ada", 1)
    mark(toy, "ada", ex2=FAILED)
    enter(toy, "ada", 1.5, "Sign.")
    hand_in(toy, "ben", 2)
    with monkeypatch.context() as patch:
        if at == "rename":
            patch.setattr("pathlib.Path.rename", lambda *_: 1 / 0)
        else:
            patch.setattr(groups, "write_whole", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            toy.course.share()
    assert not toy.course.share()
    assert state(toy)["ada"] == state(toy)["ben"] == (1.5, 1.5, "Sign.", False)
    assert [path.parent.parent.name for path in toy.root.glob("autograded/*/*/*.ipynb")] == ["ben"]


def test_points_outlive_a_change_of_the_exercises(toy):
    hand_in(toy, "ada", 1)
    mark(toy, "ada", ex2=FAILED)
    enter(toy, "ada", 1.5, "Sign.")
    toy.course.share()
    nb = lesson()
    for name in ("07-ex3-half", "07-ex3-half-test"):
        cell(nb, name).metadata.nbgrader.grade_id = cell(nb, name).id = name.replace("half", "halved")
    nbformat.write(nb, toy.root / "solutions" / LESSON / f"{LESSON}.ipynb")
    toy.course.prepare(LESSON)
    toy.course.share()
    assert [one[1:3] for one in state(toy).values()] == [(1.5, "Sign.")] * 2


def test_a_question_waits_once_and_its_points_count_for_both(toy):
    nb = lesson()
    cell(nb, "07-ex2-square").metadata.nbgrader.update(grade=True, points=2.0)
    nb.cells.remove(cell(nb, SQUARE))
    nbformat.write(nb, toy.root / "solutions" / LESSON / f"{LESSON}.ipynb")
    toy.course.prepare(LESSON)
    hand_in(toy, "ada", 1)
    with toy.course.gradebook() as gradebook:
        gradebook.update_or_create_student("ada")
        gradebook.update_or_create_submission(LESSON, "ada")
        for grade in gradebook.find_submission_notebook(LESSON, LESSON, "ada").grades:
            question = grade.name == "07-ex2-square"
            grade.auto_score, grade.needs_manual_grade = None if question else 1.0, question
        gradebook.db.commit()
    toy.course.share()

    def waits():
        with toy.course.gradebook() as gradebook:
            listed = [one.student.id for one in gradebook.assignment_submissions(LESSON) if one.needs_manual_grade]
        return listed, sorted(row.student for row in toy.course.rows() if row.waits)

    assert waits() == (["ada"], ["ada", "ben"])
    with toy.course.gradebook() as gradebook:
        grade = gradebook.find_grade("07-ex2-square", LESSON, LESSON, "ada")
        grade.manual_score, grade.needs_manual_grade = 1.5, False
        gradebook.db.commit()
    found = marks.read(toy.course)
    assert waits() == ([], []) and {one.student: one.score for one in found.submissions} == {"ada": 3.5, "ben": 3.5}


# --- late -------------------------------------------------------------------------------------------------


def test_the_time_is_that_of_the_hand_in_and_an_extension_of_either_counts(toy):
    hand_in(toy, "ada", 4)
    late_policy = "[late]\npenalty_per_day = 0.1\nlate_days = 1\n[lessons.07_toy]\ndue = 2026-05-01\n"
    settings(toy.root, 'timezone = "UTC"\n' + PAIR + late_policy)
    mark(toy, "ada")

    def found():
        with toy.course.gradebook() as gradebook:
            return {job[0]: one[1:3] for job, one in late.of_students(gradebook, toy.course.own, "ben").items()}

    assert found() == {"ada": (3, 1), "ben": (3, 1)}
    settings(toy.root, 'timezone = "UTC"\n' + PAIR + late_policy + "[extensions.ben]\n07_toy = 2\n")
    assert found() == {"ada": (1, 1), "ben": (1, 1)}
    settings(toy.root, 'timezone = "UTC"\n' + PAIR + late_policy)
    with toy.course.gradebook() as gradebook:
        gradebook.grant_extension(LESSON, "ada", days=5)
    assert found() == {"ada": (0, 0), "ben": (0, 0)}


def test_the_time_follows_the_hand_in_that_counts_though_its_points_are_the_same(toy):
    policy = "[late]\npenalty_per_day = 0.1\n[lessons.07_toy]\ndue = 2026-05-10\n"
    settings(toy.root, 'timezone = "UTC"\n' + PAIR + policy)

    def found():
        with toy.course.gradebook() as gradebook:
            groups.share(gradebook, toy.root)
            return {job[0]: one.days for job, one in late.of_students(gradebook, toy.course.own).items()}

    for student, day, days in (("ada", 9, 0), ("ben", 15, 5), ("ada", 20, 10)):
        hand_in(toy, student, day)
        mark(toy, student)
        assert found() == {"ada": days, "ben": days}
    shutil.rmtree(toy.root / "submitted" / "ada")
    mark(toy, "ben")
    assert found() == {"ada": 5, "ben": 5}


# --- the report, copies, answers --------------------------------------------------------------------------


def test_the_report_counts_a_notebook_once_and_the_exports_have_both(toy, tmp_path, capsys):
    hand_in(toy, "ada", 1)
    hand_in(toy, "cyd", 1)
    mark(toy, "ada", ex2=FAILED)
    mark(toy, "cyd")
    found = marks.read(toy.course)
    assert [one.student for one in found.of_lesson(LESSON)] == ["ada & ben", "cyd"]
    assert {one.student: one.score for one in found.submissions} == {"ada": 4, "ben": 4, "cyd": 6}
    assert lms.moodle(found) == "username,07_toy\nada,4\nben,4\ncyd,6\n" and "ben,,,ben,,4" in lms.canvas(found)
    page = report.page(found, toy.root / "report.html")
    assert "3 students, 1 lesson, 2 graded submissions" in page and "2 submissions; mean 5" in page
    assert "ada &amp; ben (2)" in page and found.absent(LESSON) == []
    assert main(["answers", str(tmp_path / "copies"), "07", "--course", str(toy.root)]) == 0
    assert sorted(path.name for path in (tmp_path / "copies" / LESSON / "submissions").iterdir()) == ["ada", "cyd"]
    assert "not graded yet" not in capsys.readouterr().err


def test_partners_are_no_copies_and_a_copy_of_a_group_is(toy, monkeypatch):
    monkeypatch.setattr(copies, "FEW", 9)
    lines = [f"    a{n} = x * {n} + len(str({n}))\n" for n in range(40)]
    long = f"def square(x):\n{''.join(lines)}    return x * x\n"
    for student in ("ada", "cyd"):
        hand_in(toy, student, 1)
        mark(toy, student, long)
    found = marks.read(toy.course)
    assert [pair.students for pair in copies.pairs(found.of_lesson(LESSON), {})] == [("ada & ben", "cyd")]


# --- the whole way ----------------------------------------------------------------------------------------


@pytest.mark.apart
def test_a_group_from_grade_to_retry(toy, monkeypatch, capsys):
    monkeypatch.setattr(nbgrader_api, "CONFIG", "nbgrader_config.py")
    hand_in(toy, "ada", 1, ex2=WRONG)
    grade = ["grade", "--course", str(toy.root), "--no-jail", "--jobs", "1"]
    assert main(grade) == 0
    csv = (toy.root / "grades.csv").read_text()
    assert "ada,07_toy,4,6,1,0,3\nben,07_toy,4,6,1,0,3\n" in csv and "ben" in capsys.readouterr().out
    for student in ("ada", "ben"):
        page = toy.page(student)
        assert "Handed in by ada; it counts for ada and ben." in page and "think of square" in page
    shutil.rmtree(toy.root / "feedback" / "ben")
    enter(toy, "ada", 1.5, "Good idea, sign wrong.")
    runs = []
    monkeypatch.setattr(Course, "_grade", lambda _self, todo, *_: runs.extend(todo) or [])
    assert main(grade) == 0 and not runs, "nothing is run again for points by hand"
    assert "Good idea, sign wrong." in toy.page("ben") and "5.5 of 6 points" in toy.page("ben")
    monkeypatch.undo()
    monkeypatch.setattr(nbgrader_api, "CONFIG", "nbgrader_config.py")
    hand_in(toy, "ben", 2, ex1="def double(x):\n    return 1\n", ex2="def square(x):\n    return 1\n")
    assert main(grade) == 0
    assert "submitted/ada/07_toy does not count: ben has handed in a newer notebook" in capsys.readouterr().err
    for student in ("ada", "ben"):
        page = toy.page(student)
        assert "Handed in by ben" in page and "Good idea, sign wrong." in page and "handed in anew" in page
        assert "4.5 of 6 points" in page
    assert not (toy.root / "autograded" / "ada" / LESSON).exists()
    assert main(["retry", "ada", "07", "07-ex2", "--course", str(toy.root), "--no-jail"]) == 1
    assert "square(3) is 1" in capsys.readouterr().out
    settings(toy.root, "")
    assert main(grade) == 0
    csv = (toy.root / "grades.csv").read_text()
    assert "ada,07_toy,4,6,1,0,3\n" in csv, "her own notebook counts for her again, and its points"
    assert "ben,07_toy,4.5,6" in csv
    assert json.loads((toy.root / "autograded" / groups.RECORD).read_text()) == {LESSON: {}}


# --- graded by hand, without names ------------------------------------------------------------------------

NAMES = ("zzada", "zzben", "zzcyd", "Lovelace", "Zuse")


@pytest.fixture(scope="module")
def class_with_names(tmp_path_factory):
    """Two notebooks, one of a group, graded, of students whose names occur nowhere else."""
    toy = Toy(tmp_path_factory.mktemp("anonymous"))
    toy.course.jail = False
    settings(toy.root, 'anonymous = true\ngroups = "zzada, zzben"')
    with toy.course.gradebook() as gradebook:
        gradebook.update_or_create_student("zzada", first_name="Ada", last_name="Lovelace")
        gradebook.update_or_create_student("zzcyd", first_name="Konrad", last_name="Zuse")
    for student in ("zzada", "zzcyd"):
        hand_in(toy, student, 1)
        mark(toy, student, ex2=FAILED)
        toy.hand_in(student, submission()).with_name(f"{student}.ipynb").write_text("{}")
    return toy


def named(text):
    return [name for name in NAMES if name in text]


def test_a_report_without_names_calls_notebooks_by_their_numbers_in_formgrader(class_with_names, capsys):
    root = class_with_names.root
    settings(root, 'anonymous = true\ngroups = "zzada, zzben"\n[late]\nlate_days = 2')
    assert main(["report", "--anonymous", "--course", str(root), "--moodle", str(root / "moodle.csv")]) == 0
    page = (root / "report-anonymous.html").read_text()
    assert not named(page) and "#1 (2), #2 (2)" in page and "Submission #7 in formgrader" in page
    assert "late days" not in page.lower(), "who has used some is left out, and so is that nobody has"
    assert "zzben,4" in (root / "moodle.csv").read_text(), "what systems import has them"
    assert main(["report", "--course", str(root)]) == 0
    page = (root / "report.html").read_text()
    assert len(named(page)) == 5 and "Nobody has used any: everybody has 2 left." in page
    settings(root, 'anonymous = true\ngroups = "zzada, zzben"')
    capsys.readouterr()


@pytest.mark.thorough
def test_formgrader_shows_no_names_and_a_group_once(class_with_names):
    root = class_with_names.root
    server = Server(root)
    try:
        lists = [f"/formgrader/gradebook/{LESSON}/{LESSON}", f"/formgrader/api/submitted_notebooks/{LESSON}/{LESSON}"]
        assert not any(named(server.get(path)) for path in lists)
        rows = server.json(lists[1])
        assert len(rows) == 2, "the group once"
        for row in rows:
            page = server.get(f"/formgrader/submissions/{row['id']}/")
            assert "07-ex2-square-test" in page and not named(page) and "hidden (anonymous in course.toml)" in page
            comments = server.json(f"/formgrader/api/comments?submission_id={row['id']}")
            assert comments and not named(str([(one["auto_comment"], one["manual_comment"]) for one in comments]))
            for way in ("next", "prev"):
                assert not named(server.get(f"/formgrader/submissions/{row['id']}/{way}"))
        settings(root, 'groups = "zzada, zzben"')
        assert {row["student"] for row in server.json(lists[1])} == {"zzada", "zzcyd"}, "at once"
        assert named(server.get(f"/formgrader/submissions/{row['id']}/"))
    finally:
        server.stop()
        settings(root, 'anonymous = true\ngroups = "zzada, zzben"')
