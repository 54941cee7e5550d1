"""`course.toml`: a course's own lessons, points, texts and dates, in what students get, in their grades and pages."""

from __future__ import annotations

import csv
import datetime
import re
import shutil
import subprocess
import zipfile
from copy import deepcopy
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbgrader.apps.api import NbGraderAPI
from nbgrader.converters import Autograde, GenerateFeedback
from nbgrader.coursedir import CourseDirectory
from traitlets.config import Config

from autograder import properties
from autograder.__main__ import main
from autograder.audit import audit
from autograder.author import handout
from autograder.desk import marks, report
from autograder.grade.course import Course
from autograder.grade.nbgrader import library, release, scoring
from autograder.grade.nbgrader.grade_submission import grade_submission
from autograder.grade.nbgrader.late import of_students
from autograder.grade.record import Record
from autograder.lesson import adapted, course_settings, names, notebook
from tests.helpers.report_tables import rows_of_table
from tests.helpers.toy_course import LESSON, RIGHT, WRONG_SQUARE, Toy, cell, submission

pytestmark = pytest.mark.apart

POLICY = "[late]\npenalty_per_day = 0.25\n"
DUE = "[lessons.07]\ndue = 2026-10-19T14:00:00\n"  # in Berlin, two days before everybody hands in


def settings(folder: Path, text: str) -> course_settings.Settings:
    (folder / "course.toml").write_text(text)
    return course_settings.of(folder)


def speak_of_points(nb):
    nb.cells[0].source = "# Toy\n\nAn hour · 6 points"
    for number, name in enumerate(RIGHT, start=1):
        cell(nb, f"{name}-text").source = f"### Exercise {number} ({number} point{'' if number == 1 else 's'})"


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """A class of ada, all right, and ben, whose second exercise is wrong; its lesson speaks of points."""
    toy = Toy(tmp_path_factory.mktemp("class"))
    toy.teach(speak_of_points)
    toy.course.jail = False
    for student, answers in (("ada", {}), ("ben", {"ex2": WRONG_SQUARE})):
        path = toy.hand_in(student, submission(**answers))
        (path.parent / "timestamp.txt").write_text("2026-10-21 12:00:00 UTC")
    grade(toy)
    return toy


@pytest.fixture
def toy(graded, tmp_path):
    return graded.copy(tmp_path)


def grade(toy):
    assert not toy.course.grade(jobs=1, solutions=False)


def scores(toy) -> dict[str, tuple[str, str]]:
    with open(toy.root / "grades.csv", encoding="utf-8") as file:
        return {row["student_id"]: (row["score"], row["max_score"]) for row in csv.DictReader(file)}


def released(root: Path, name: str = LESSON) -> nbformat.NotebookNode:
    return nbformat.read(root / "release" / name / f"{name}.ipynb", as_version=4)


# --- mistakes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('hint = "no"', "course.toml: no setting 'hint': did you mean hints?"),
        ("[late]\nlatedays = 3", "course.toml: late: no setting 'latedays': did you mean late_days?"),
        ("[lessons.03_setp]", "course.toml: lessons: no lesson '03_setp': did you mean 03_step?"),
        ("[lessons.03]\ndrop = ['ex17']", "course.toml: lessons.03.drop: no exercise 'ex17': did you mean ex7?"),
        ("[lessons.03]\npoints.03-ex3-adm = 2", "no exercise '03-ex3-adm': did you mean 03-ex3?"),
        ("[lessons.03]\n[extensions.ada]\n04 = 1", "extensions.ada: no lesson '04': did you mean 03_step?"),
        ("[lessons.03]\ndue = 'Monday'", "lessons.03.due: 'Monday' is no date: write 2026-10-19 or"),
        ("[lessons.03]\ndue = 19", "lessons.03.due: 19 is no date"),
        ("timezone = 'Europe/Berlni'", "no time zone 'Europe/Berlni': did you mean Europe/Berlin?"),
        ("core = 'some'", "core: it is 'some': write 'adds up' or 'all or nothing'"),
        ("hints = 1", "hints: it is 1: write true or false"),
        ("[lessons.03]\ncore = 'add'", "lessons.03.core: it is 'add': write 'adds up' or 'all or nothing'"),
        ("[lessons.03]\nhints = 'no'", "lessons.03.hints: it is 'no': write true or false"),
        ("[lessons.03]\nhint = false", "lessons.03: no setting 'hint': did you mean hints?"),
        ("[late]\npenalty_per_day = 10", "it is 10: write the part of the points, such as 0.1 for 10 %"),
        ("[late]\ngrace_minutes = true", "late.grace_minutes: it is True: write a number"),
        ("[lessons.03]\npoints.ex3 = 0", "an exercise has points above 0; to leave it out, use drop"),
        ("[lessons.03]\npoints.ex3 = 2\ndrop = ['ex3']", "03-ex3 is in more than one of points, drop and given"),
        ("lessons = ['03']", "lessons: it is ['03']: write a table, such as [lessons]"),
        ("[lessons.03", "course.toml: Expected ']' at the end of a table declaration"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_nearest_right_name(tmp_path, text, says, capsys):
    (tmp_path / "course.toml").write_text(text)
    assert main(["grade", "--course", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1


def test_an_extension_of_nobody_is_told_and_stops_nothing(toy, capsys):
    settings(toy.root, "[extensions.adda]\n07_toy = 3")
    grade(toy)
    assert "extensions: no work of a student 'adda' yet: did you mean ada?" in capsys.readouterr().err
    assert scores(toy)["ada"] == ("6", "6")


def test_an_exercise_that_others_need_is_not_dropped_but_given(tmp_path):
    path = notebook.solution_path("11_pipeline")
    nb = notebook.named(nbformat.read(path, as_version=4))
    own = settings(tmp_path, "[lessons.11]\ndrop = ['ex3']")
    needed = 'needed by 11-ex4, 11-zero-bubble-run, 11-ex5: write given = ."11-ex3".'
    with pytest.raises(ValueError, match=f"peak_activations of 11-ex3 is {needed}"):
        adapted.adapted(nb, "11_pipeline", own)
    own = settings(tmp_path, "[lessons.11]\ndrop = ['ex3', 'ex4']")
    with pytest.raises(ValueError, match="peak_activations of 11-ex3 is needed by 11-zero-bubble-run, 11-ex5: "):
        adapted.adapted(nb, "11_pipeline", own)
    own = settings(tmp_path, "[lessons.11]\ngiven = ['ex3']")
    ours = {one.id: one for one in adapted.adapted(nb, "11_pipeline", own).cells}
    assert "11-ex3-peaks-test" not in ours and "nbgrader" not in ours["11-ex3-peaks"].metadata
    assert "### " not in ours["11-ex3-peaks"].source and "(its answer is given)" in ours["11-ex3"].source
    assert "· 17 points" in ours["11-title"].source


def test_a_demonstration_that_needs_a_removed_exercise_is_found():
    """Somebody removes the cells by hand, in the notebook."""
    nb = notebook.read("11_pipeline")
    assert names.undefined_names(nb) == []
    nb.cells = [one for one in nb.cells if not one.id.startswith("11-ex3-")]
    assert ("11-ex4-try", "peak_activations") in names.undefined_names(nb)


# --- what students get ------------------------------------------------------------------------------------


def test_titles_totals_and_lists_follow_the_points(tmp_path, capsys):
    """In the released notebook of a lesson with checks; the repository's own `notebooks/` stay as they are."""
    settings(tmp_path, "core = 'all or nothing'\n[lessons.02]\npoints.ex2 = 6\ndrop = ['ex6']\ntext = '**Hello**'")
    state = [path.stat().st_mtime_ns for path in sorted(notebook.NOTEBOOKS.rglob("*"))]
    assert main(["release", "--course", str(tmp_path)]) == 0
    assert "release/02_costs/02_costs.ipynb written" in capsys.readouterr().out
    assert [path.stat().st_mtime_ns for path in sorted(notebook.NOTEBOOKS.rglob("*"))] == state
    cells = {one.id: one for one in released(tmp_path, "02_costs").cells}
    assert "· 16 points" in cells["02-title"].source and cells["02-course"].source == "**Hello**"
    assert "(6 points)" in cells["02-ex2"].source and not any(name.startswith("02-ex6") for name in cells)
    worth = [float(one) for one in re.findall(r"^- ([\d.]+) points?(?:,|:)", cells["02-ex2"].source, re.MULTILINE)]
    assert sum(worth) == 6 and len(worth) > 1
    assert "the core, without which the rest earns nothing:" in cells["02-ex2"].source
    tests = [one for one in cells.values() if one.metadata.get("nbgrader", {}).get("grade")]
    assert sum(one.metadata.nbgrader.points for one in tests) == 16
    assert not any(adapted.SHARED in one.metadata for one in cells.values())
    assert not any("BEGIN" in one.source for one in cells.values())


def test_properties_share_the_points_in_the_same_proportions(tmp_path):
    nb = notebook.read("02_costs")
    own = settings(tmp_path, "[lessons.02]\npoints.ex2 = 1")
    test = next(one for one in adapted.adapted(nb, "02_costs", own).cells if one.id == "02-ex2-two-level-test")
    before = next(one for one in nb.cells if one.id == test.id)
    old, new = ([one.points for one in properties.of_test(some)] for some in (before, test))
    assert sum(old) == 3 and sum(new) == 1 and len(old) == len(new)
    assert all(abs(3 * ours - theirs) < 0.05 for ours, theirs in zip(new, old, strict=True))


def test_a_lessons_own_core_and_hints_win_over_those_of_the_course(tmp_path):
    """In the settings, in what students get, and in what makes a grade old: that lesson's, and no other one's."""
    text = "core = 'all or nothing'\nhints = false\n[lessons.02]\n[lessons.03]\ncore = 'adds up'\nhints = true\n"
    own = settings(tmp_path, text)
    assert [(own.of(name).all_or_nothing, own.of(name).hints) for name in own.names()] == [(True, False), (False, True)]
    nbs = [adapted.adapted(nb := notebook.read(name), name, own) is nb for name in own.names()]
    assert nbs == [False, True] and [bool(own.marks(name)) for name in own.names()] == [True, False]
    other = settings(tmp_path, "[lessons.02]\ncore = 'all or nothing'\n[lessons.03]\nhints = false")
    assert other.marks("02_costs") == own.marks("02_costs") and not other.marks("03_step")
    assert main(["release", "--course", str(tmp_path)]) == 0
    lists = {name: "".join(one.source for one in released(tmp_path, name).cells) for name in own.names()}
    assert ["earns nothing" in text for text in lists.values()] == [True, False]


def test_a_lesson_is_handed_out_from_its_date_on(tmp_path, capsys):
    settings(tmp_path, "[lessons.02]\nrelease = 2000-01-01\ndue = 2000-02-01\n[lessons.03]\nrelease = 2999-01-01\n")
    assert main(["handout", "--course", str(tmp_path)]) == 0
    assert "03_step is left out: course.toml releases it on 2999-01-01 at 00:00" in capsys.readouterr().out
    with zipfile.ZipFile(tmp_path / "_build" / "handout.zip") as archive:
        names = set(archive.namelist())
        readme = archive.read(f"{handout.NAME}/README.md").decode()
    of_lessons = {name for name in names if "/notebooks/" in name}
    assert of_lessons == {f"{handout.NAME}/notebooks/02_costs/{name}" for name in ("02_costs.ipynb", "AGENTS.md")}
    packages = {f"{one}/{path.name}" for one in notebook.PACKAGES for path in (notebook.ROOT / one).glob("*.*")}
    others = {"README.md", "pyproject.toml", *handout.COPIED, *packages}
    assert names - of_lessons == {f"{handout.NAME}/{name}" for name in others}
    assert "`02_costs` (due 2000-02-01, 23:59)" in readme and "03_step" not in readme
    assert main(["release", "--course", str(tmp_path)]) == 0
    assert [path.name for path in (tmp_path / "release").iterdir()] == ["02_costs"]
    assert main(["handout", "03", "--course", str(tmp_path)]) == 2
    assert "nothing to hand out yet: 03_step is left out" in capsys.readouterr().err
    assert main(["handout", "04", "--course", str(tmp_path)]) == 2
    assert "course.toml does not have 04_accumulation; it has 02_costs, 03_step" in capsys.readouterr().err


def test_the_repositorys_own_checks_and_audit_do_not_follow_the_file(tmp_path, monkeypatch):
    """`make check` finds no stale notebook, and the audit tries an exercise that the course has dropped."""
    own, of = settings(tmp_path, "[lessons.02]\ndrop = ['ex6']\npoints.ex2 = 6"), course_settings.of
    monkeypatch.setattr(course_settings, "of", lambda root: own if Path(root).resolve() == notebook.ROOT else of(root))
    assert release.stale(["02"]) == []
    ((lesson, batch),) = audit.named(["02-ex6"])
    known = audit.batches(lesson)[batch]
    assert known and not audit.examine(known[0], thorough=False).problems


# --- grades -----------------------------------------------------------------------------------------------


def test_other_points_reach_gradebook_pages_file_and_report(toy):
    assert scores(toy) == {"ada": ("6", "6"), "ben": ("4", "6")}
    settings(toy.root, "[lessons.07]\npoints = { ex2 = 5 }")
    grade(toy)
    assert scores(toy) == {"ada": ("9", "9"), "ben": ("4", "9")}
    assert "4 of 9 points" in toy.page("ben") and "in points of 9:" in report.page(
        marks.read(toy.course), toy.root / "x.html"
    )
    (toy.root / "course.toml").unlink()
    grade(toy)
    assert scores(toy) == {"ada": ("6", "6"), "ben": ("4", "6")}


def test_where_the_core_is_all_or_nothing_the_rest_of_an_exercise_does_not_count(toy):
    """ben's second exercise lacks its core, of two properties."""
    path, found = toy.root / "autograded" / "ben" / LESSON / f"{LESSON}.ipynb", []
    nb = nbformat.read(path, as_version=4)
    test = cell(nb, "07-ex2-square-test")
    (core,) = test.metadata.autograder.properties
    core.name, core.points = "core", 1.5
    test.metadata.autograder.properties.append(nbformat.from_dict({"name": "other", "points": 0.5, "status": "ok"}))
    where = {"student": "ben", "assignment": LESSON, "notebook": LESSON, "db_url": f"sqlite:///{toy.root}/gradebook.db"}
    where |= {"changed": (), "handed_in": None}
    for text in (
        "",
        "[lessons.07]\ncore = 'all or nothing'",
        "core = 'all or nothing'",
        "core = 'all or nothing'\n[lessons.07]\ncore = 'adds up'",
    ):
        settings(toy.root, text)
        config = Config(CourseDirectory={"root": str(toy.root)})
        scoring.SaveScores(config=config).preprocess(deepcopy(nb), {"nbgrader": where})
        found.append(toy.points("ben")["ex2"])
    assert found == [0.5, 0, 0, 0.5]


def test_a_dropped_exercise_takes_its_points_and_nothing_that_a_person_entered(toy, capsys):
    toy.enter("ben", "07-ex1-double", 0.5)
    toy.enter("ben", "07-ex2-square", 1.5, "Sign wrong.")
    with toy.course.gradebook() as gradebook:
        gradebook.update_or_create_assignment(LESSON, duedate=datetime.datetime(2026, 10, 30))
    settings(toy.root, "[lessons.07]\ndrop = ['ex2']")
    grade(toy)
    said = "07_toy has no 07-ex2-square any more: the points and comments by hand of ben for that are kept in"
    assert said in capsys.readouterr().err
    assert scores(toy) == {"ada": ("4", "4"), "ben": ("3.5", "4")} and "Exercise 2" not in toy.page("ben")
    assert [toy.row("ada")[name] for name in ("ex1", "ex2", "ex3")] == ["1", "", "3"], "each has its column"
    assert main(["regrade", "--no-jail", "--jobs", "1", "--course", str(toy.root)]) == 0
    assert "None of the 4 marks has changed." in capsys.readouterr().out
    (toy.root / "course.toml").unlink()
    grade(toy)
    assert scores(toy)["ben"] == ("5", "6") and "Sign wrong." in toy.page("ben")
    with toy.course.gradebook() as gradebook:
        assert gradebook.find_assignment(LESSON).duedate == datetime.datetime(2026, 10, 30)


def test_a_lesson_that_leaves_the_course_comes_back_with_its_grades(toy, capsys):
    settings(toy.root, "[lessons.07]\n")
    path = toy.root / "solutions" / "08_more" / "08_more.ipynb"
    path.parent.mkdir()
    shutil.copy(toy.root / "solutions" / LESSON / f"{LESSON}.ipynb", path)
    settings(toy.root, "[lessons.08]\n")
    assert toy.course.lessons() == ["08_more"] and not toy.course.rows()
    assert main(["grade", "07", "--course", str(toy.root)]) == 2
    assert "course.toml does not have 07_toy; it has 08_more" in capsys.readouterr().err
    settings(toy.root, "[lessons.07]\n")
    assert toy.course.totals()["ben", LESSON] == (4.0, 6.0)


def test_hints_can_be_left_out_of_the_pages(toy, monkeypatch):
    path = toy.root / "autograded" / "ben" / LESSON / f"{LESSON}.ipynb"
    nb = nbformat.read(path, as_version=4)
    (lost,) = cell(nb, "07-ex2-square-test").metadata.autograder.properties
    lost.failure.hints = [{"name": "zero", "text": "You return nothing but 0."}]
    nbformat.write(nb, path)
    for text, shown in (
        ("[late]", True),
        ("hints = false", False),
        ("hints = false\n[lessons.07]\nhints = true", True),
        ("[lessons.07]\nhints = false", False),
        ("", True),
    ):
        settings(toy.root, text)
        toy.course.task = None  # nothing is run again
        grade(toy)
        assert ("You return nothing but 0." in toy.page("ben")) == shown, text


# --- dates ------------------------------------------------------------------------------------------------


def late(toy, text) -> tuple[str, str]:
    """ada's and ben's scores, both handed in at 2026-10-21 12:00 UTC. No notebook is run again."""
    settings(toy.root, f"timezone = 'Europe/Berlin'\n{text}")
    toy.course.task = None
    grade(toy)
    return tuple(score for score, _ in scores(toy).values())


def test_due_dates_penalties_late_days_grace_and_extensions_count_without_a_run(toy):
    assert late(toy, DUE) == ("6", "4"), "late costs nothing where nothing says what"
    assert late(toy, POLICY + DUE) == ("3", "2")
    assert "2 days late" in toy.page("ada") and "3 / 6" in toy.page("ada")
    assert late(toy, POLICY + "[lessons.07]\ndue = 2026-10-19\n") == ("3", "2"), "a day ends at its end"
    assert late(toy, POLICY + "[lessons.07]\ndue = 2026-10-21T14:00:00\n") == ("6", "4")
    assert late(toy, POLICY + "grace_minutes = 10\n[lessons.07]\ndue = 2026-10-21T13:55:00\n") == ("6", "4")
    assert late(toy, POLICY + "grace_minutes = 4\n[lessons.07]\ndue = 2026-10-21T13:55:00\n") == ("4.5", "3")
    assert late(toy, POLICY + "late_days = 1\n" + DUE) == ("4.5", "3")
    assert "2 days late, 1 of them free" in toy.page("ada")
    assert late(toy, POLICY + DUE + "[extensions.ben]\n07_toy = 1\n") == ("3", "3")
    assert late(toy, POLICY + DUE + "[extensions.ben]\n07 = 2026-10-22\n") == ("3", "4")
    assert late(toy, "") == ("6", "4") and "late" not in toy.page("ada").split("<tfoot>")[1].split("</tfoot>")[0]


WEEK = "[extensions.ada]\n03 = 7\n"
#: Clocks go back on 2026-10-25 and forward on 2027-03-28. (due, more settings, handed in, days late)
DAYS = [
    ("2026-10-24T18:00:00", "", "2026-10-24T18:00:01", 1),
    ("2026-10-24T18:00:00", "", "2026-10-25T17:30:00", 1),
    ("2026-10-24T18:00:00", "", "2026-10-25T18:00:01", 2),
    ("2026-10-25T02:50:00", "", "2026-10-25T01:10:00Z", 1),
    ("2027-03-27T18:00:00", "", "2027-03-28T18:30:00", 2),
    ("2026-10-19", WEEK, "2026-10-26T23:59:59", 0),
    ("2026-10-19", WEEK, "2026-10-27T00:00:00", 1),
    ("2026-10-19", WEEK.replace("7", "2026-10-26"), "2026-10-26T23:59:59", 0),
    ("2026-10-19", WEEK.replace("7", "2026-10-26"), "2026-10-27T00:00:00", 1),
    ("2026-10-10T18:00:00", "[late]\ngrace_minutes = 15\n", "2026-10-10T18:15:00", 0),
    ("2026-10-10T18:00:00", "[late]\ngrace_minutes = 15\n", "2026-10-11T18:10:00", 1),
    ("2026-10-10T18:00:00", "[late]\ngrace_minutes = 15\n", "2026-10-11T18:16:00", 2),
    ("9998-12-31", "", "9999-12-31T23:59:59Z", 1),
    ("2026-10-10", "[late]\ngrace_minutes = 15\n", "0001-01-01T00:00:00Z", 0),
]


def test_days_and_extensions_follow_the_calendar_of_the_course(tmp_path):
    record = Record()
    for due, more, when, days in DAYS:
        own = settings(tmp_path, f"timezone = 'Europe/Berlin'\n{more}[lessons.03]\ndue = {due}\n")
        time = datetime.datetime.fromisoformat(when)
        time = (time if time.tzinfo else time.replace(tzinfo=own.zone)).astimezone(datetime.UTC)
        record.at("03_step", "ada").handed_in = time.replace(tzinfo=None).isoformat()
        found = of_students(record, own)["ada", "03_step"]
        assert found.days == days, (due, more, when, found)


def test_a_time_that_cannot_be_read_leaves_no_earlier_one(toy):
    assert late(toy, POLICY + DUE) == ("3", "2")
    executed = nbformat.read(toy.root / "autograded" / "ada" / LESSON / f"{LESSON}.ipynb", 4)
    config = toy.course._config(assignment_id=LESSON, student_id="ada")
    grade_submission(config, "ada", LESSON, executed, {"timestamp.txt": b"junk"})
    assert toy.course.totals()["ada", LESSON] == (6, 6) and "late" not in toy.page("ada").split("<tfoot>")[1]
    for text, when in (("20.10.2026 12:00 UTC", datetime.datetime(2026, 10, 20, 12)), ("junk", None)):
        (toy.root / "submitted" / "ada" / LESSON / "timestamp.txt").write_text(text)
        assert not library.convert(Autograde, config)
        with toy.course.gradebook() as gradebook:
            assert gradebook.find_submission(LESSON, "ada").timestamp == when


def test_dates_in_the_gradebook_count_where_the_file_says_nothing_and_stay(toy):
    with toy.course.gradebook() as gradebook:
        gradebook.update_or_create_assignment(LESSON, duedate=datetime.datetime(2026, 10, 20, 12))
        gradebook.grant_extension(LESSON, "ben", days=1)
    assert late(toy, POLICY) == ("4.5", "4")
    assert late(toy, POLICY + DUE) == ("3", "3")
    assert late(toy, POLICY) == ("4.5", "4")


def in_gradebook(toy, student="ben") -> tuple[datetime.datetime | None, datetime.timedelta | None]:
    """The due date, and a student's extension."""
    with toy.course.gradebook() as gradebook:
        found = gradebook.find_submission(LESSON, student)
        return found.assignment.duedate, found.extension


def test_the_gradebook_has_the_dates_of_the_file_as_nbgrader_shows_them(toy, capsys):
    """In UTC, across the end of summer time; also of a lesson that nobody has handed in."""
    path = toy.root / "solutions" / "08_more" / "08_more.ipynb"
    path.parent.mkdir()
    shutil.copy(toy.root / "solutions" / LESSON / f"{LESSON}.ipynb", path)
    text = "timezone = 'Europe/Berlin'\n[lessons.07]\ndue = 2026-10-24\n[lessons.08]\ndue = 2026-10-26T12:00:00\n"
    settings(toy.root, text + "[extensions.ben]\n07 = 2026-10-27\n08 = 2\n[extensions.ada]\n07 = 1.5\n")
    grade(toy)
    assert in_gradebook(toy) == (datetime.datetime(2026, 10, 24, 21, 59, 59), datetime.timedelta(days=3, hours=1))
    assert in_gradebook(toy, "ada")[1] == datetime.timedelta(days=1.5, hours=1)
    course = CourseDirectory(config=toy.course._config())
    shown = {one["name"]: one["display_duedate"] for one in NbGraderAPI(course).get_assignments()}
    assert shown == {LESSON: "2026-10-24 21:59:59 UTC", "08_more": "2026-10-26 11:00:00 UTC"}
    assert "does not count" not in capsys.readouterr().err
    before = (toy.root / "feedback" / "ben" / LESSON / f"{LESSON}.html").stat().st_mtime_ns
    grade(toy)
    assert (toy.root / "feedback" / "ben" / LESSON / f"{LESSON}.html").stat().st_mtime_ns == before, "nothing to do"
    settings(toy.root, "[lessons.07]\n")
    grade(toy)
    assert in_gradebook(toy) == (None, None)


def test_a_date_that_a_person_entered_is_told_once_and_comes_back(toy, capsys):
    entered = datetime.datetime(2026, 10, 20, 12), datetime.timedelta(days=1)
    with toy.course.gradebook() as gradebook:
        gradebook.update_or_create_assignment(LESSON, duedate=entered[0])
        gradebook.grant_extension(LESSON, "ben", days=1)
    text = "timezone = 'Europe/Berlin'\n[extensions.ben]\n07 = 2\n[lessons.07]\ndue = 2026-10-19T14:00:00\n"
    late(toy, text.split("\n", 1)[1])
    said = [line for line in capsys.readouterr().err.splitlines() if "does not count" in line]
    assert [line.split("course.toml: ")[1].split(",")[0] for line in said] == [
        "07_toy is due on 2026-10-19 at 14:00; 2026-10-20 at 14:00",
        "ben has 2 more days for 07_toy; 1 days",
    ]
    ours = datetime.datetime(2026, 10, 19, 12), datetime.timedelta(days=2)
    assert in_gradebook(toy) == ours
    settings(toy.root, text + "drop = ['ex1']\n")
    toy.course = Course(toy.root, jail=False)
    grade(toy)
    assert in_gradebook(toy) == ours and "does not count" not in capsys.readouterr().err
    with toy.course.gradebook() as gradebook:  # once more, by formgrader
        gradebook.update_or_create_assignment(LESSON, duedate="2026-10-22T12:00 +0000")
    settings(toy.root, text.replace("19T14", "23T14"))
    grade(toy)
    assert in_gradebook(toy)[0] == datetime.datetime(2026, 10, 23, 12)
    assert "07_toy is due on 2026-10-23 at 14:00; 2026-10-22 at 14:00, which" in capsys.readouterr().err
    (toy.root / "course.toml").unlink()
    grade(toy)
    assert in_gradebook(toy) == (datetime.datetime(2026, 10, 22, 12), entered[1])


def test_nbgraders_own_commands_write_the_dates_too(toy):
    """As formgrader's buttons do."""
    settings(toy.root, "timezone = 'UTC'\n[lessons.07]\ndue = 2026-10-19T12:00:00\n[extensions.ben]\n07 = 2\n")
    config = toy.course._config(assignment_id=LESSON, student_id="ben")
    assert not library.convert(GenerateFeedback, config)
    assert in_gradebook(toy) == (datetime.datetime(2026, 10, 19, 12), datetime.timedelta(days=2))


def test_late_days_are_used_up_in_the_order_of_the_due_dates(toy):
    """Two lessons, two days late each; of three late days, the second lesson gets one."""
    own = settings(toy.root, "[late]\nlate_days = 3\n[lessons.07]\ndue = 2026-10-19T12:00:00Z\n")
    with toy.course.gradebook() as gradebook:
        gradebook.update_or_create_assignment("06_before", duedate=datetime.datetime(2026, 10, 1))
        gradebook.update_or_create_submission("06_before", "ada", timestamp=datetime.datetime(2026, 10, 2, 12))
    found = of_students(toy.course.record(), own)
    assert found["ada", "06_before"][1:3] == (2, 2) and found["ada", LESSON][1:3] == (2, 1)
    assert found["ben", LESSON][1:3] == (2, 2)


def of_report(toy, caption: str = "Submissions that were late") -> list[list[str]]:
    page = report.page(marks.read(toy.course), toy.root / "report.html")
    return rows_of_table(BeautifulSoup(page, "html.parser"), caption)


def test_the_report_says_who_was_late_what_it_costs_and_how_many_late_days_are_left(toy):
    policy = f"{POLICY}late_days = 1\n"
    due = f"{DUE}[extensions.ben]\n07 = 1\n"
    late(toy, policy + due)
    times = "Due 2026-10-19 at 14:00; handed in 2026-10-21 at 14:00."
    with_more = "Due 2026-10-20 at 14:00, with an extension; handed in 2026-10-21 at 14:00."
    assert of_report(toy) == [
        [
            f"ada, {LESSON}: feedback",
            "2 days late, 1 of them free",
            "1.5",
            f"{times} 25 % (1 day, 25 % each) of 6 points.",
        ],
        [f"ben, {LESSON}: feedback", "1 day late, 1 of them free", "0", f"{with_more} All its days are free."],
    ]
    assert of_report(toy, "Free days") == [[who, "1", "0", f"{LESSON} (1)"] for who in ("ada", "ben")]
    assert [toy.row(student)["late_penalty"] for student in ("ada", "ben")] == ["1.5", "0"]
    settings(toy.root, f"timezone = 'Europe/Berlin'\n{policy.replace('0.25', '0.5')}{due}")
    assert "is that of an earlier grading: run autograder grade." in of_report(toy)[0][3]
    late(toy, policy.replace("0.25", "2e-1").replace("days = 1", "days = 0") + due.replace("19T", "11T"))
    assert of_report(toy)[0][2:] == ["6", f"{times.replace('-19', '-11')} 100 % of 6 points."]
    late(toy, due.replace("-19T14:00:00", "-21T14:00:00"))
    assert not of_report(toy) and not of_report(toy, "Free days")
    assert "late_penalty" not in (toy.root / "grades.csv").read_text(encoding="utf-8")
    late(toy, due)
    assert of_report(toy)[0][2:] == ["0", f"{times} Nothing says what that costs."]


# --- the example, and the repository ----------------------------------------------------------------------


def test_git_ignores_the_file_and_what_follows_from_it():
    for name in ("course.toml", "release/01_collectives/01_collectives.ipynb"):
        done = subprocess.run(["git", "check-ignore", "-q", name], cwd=notebook.ROOT)
        assert done.returncode in (0, 128), f"{name} is not ignored"  # 128: this copy has no history


@pytest.mark.slow
def test_the_example_of_the_instructors_page_works_as_it_is(tmp_path, capsys):
    """It is released, handed out and graded literally."""
    page = (notebook.ROOT / "book" / "start" / "instructor.md").read_text(encoding="utf-8")
    assert "```{literalinclude} ../../course.example.toml" in page
    shutil.copy(notebook.ROOT / "course.example.toml", tmp_path / "course.toml")
    own = course_settings.of(tmp_path)
    assert own.names() == ["01_collectives", "02_costs", "17_capstone"]
    out = [name for name in own.names() if not own.not_yet(name)]
    if out:
        assert main(["handout", "--course", str(tmp_path)]) == 0
        given = tmp_path / "_build" / "handout" / "notebooks"
        assert sorted(path.name for path in given.iterdir()) == out
    folder = tmp_path / "submitted" / "ada" / "02_costs"
    folder.mkdir(parents=True)
    shutil.copy(notebook.solution_path("02_costs"), folder)
    (folder / "timestamp.txt").write_text("2026-11-10 20:00:00 UTC")  # the extension ends on 9 November, 24:00
    course = Course(tmp_path, jail=False)
    assert not course.grade(jobs=1, solutions=False)
    # Of 16 points, exercises 1 (2) and 6 (3) are out, 2 and 4 have 6 and 4 for 3 and 2. One day late is free.
    assert course.totals()["ada", "02_costs"] == (16.0, 16.0)
    assert "1 day late, 1 of them free" in (tmp_path / "feedback" / "ada" / "02_costs" / "02_costs.html").read_text(
        encoding="utf-8"
    )
