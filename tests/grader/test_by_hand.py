"""What people enter in the gradebook counts, everywhere and at once, and outlives a change of the exercises."""

import datetime
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

import nbformat
import pytest
import sqlalchemy.exc
from nbgrader.converters import Autograde

from autograder.__main__ import main
from autograder.desk import marks, report
from autograder.grade import record as records
from autograder.grade.jail import outside
from autograder.grade.nbgrader import library, lock, submission_files, view
from autograder.grade.running import submission as running
from ranks.stopwatch import family
from tests.helpers.toy_course import LESSON, WRONG_SQUARE, Toy, cell, lesson, submission

pytestmark = pytest.mark.apart


#: Before the course's folder; `-m autograder` runs the same in another process.
GRADE = ["grade", "--no-jail", "--jobs", "1", "--course"]


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """A class of ada, all right, and ben, whose second exercise is wrong."""
    toy = Toy(tmp_path_factory.mktemp("class"))
    toy.course.jail = False
    toy.hand_in("ada", submission())
    toy.hand_in("ben", submission(ex2=WRONG_SQUARE))
    grade(toy)
    return toy


@pytest.fixture
def toy(graded, tmp_path, monkeypatch):
    """A copy of that class. runs: the submissions that are run from now on."""
    toy = graded.copy(tmp_path)
    toy.runs, task = [], toy.course.task
    monkeypatch.setattr(toy.course, "task", lambda *job: toy.runs.append(job) or task(*job))
    return toy


def grade(toy):
    assert not toy.course.grade(jobs=1, solutions=False)


def points(toy, student, exercise):
    rows = toy.course.rows()
    return next(one.score for one in rows if one.student == student and one.exercise.startswith(exercise))


# --- pages follow the gradebook ---------------------------------------------------------------------------


def test_points_comments_and_extra_credit_by_hand_are_on_the_page_and_in_the_file(toy):
    toy.enter("ben", "07-ex2-square", 1.5, "Good idea, sign wrong.", extra=0.25)
    before = toy.page("ada")
    grade(toy)
    assert "5.75 of 6 points" in toy.page("ben") and "Good idea, sign wrong." in toy.page("ben")
    assert toy.row("ben")["score"] == "5.75"
    assert toy.page("ada") == before and not toy.runs, "no notebook is run for that"
    page = toy.root / "feedback" / "ben" / LESSON / f"{LESSON}.html"
    written = page.stat().st_mtime_ns
    grade(toy)
    assert page.stat().st_mtime_ns == written, "a page that is up to date stays as it is"


def test_a_due_date_and_an_extension_count_without_a_run(toy):
    (toy.root / "submitted" / "ben" / LESSON / "timestamp.txt").write_bytes("\ufeff2026-05-02 12:00:00 UTC".encode())
    toy.course.settings.LateSubmissionPlugin.penalty_method = "zero"
    grade(toy)
    toy.runs.clear()
    with toy.course.gradebook() as gradebook:
        gradebook.update_or_create_assignment(LESSON, duedate=datetime.datetime(2026, 4, 30))
    grade(toy)
    assert toy.row("ben")["score"] == "0" and toy.row("ada")["score"] == "6"
    assert "0 of 6 points" in toy.page("ben")
    with toy.course.gradebook() as gradebook:
        gradebook.grant_extension(LESSON, "ben", days=3)
    grade(toy)
    assert toy.row("ben")["score"] == "4" and "4 of 6 points" in toy.page("ben") and not toy.runs


TIMES = {
    "2026-11-02 10:00:00.123456 UTC": "2026-11-02 10:00:00.123456",
    "2026-11-02T10:00:00+02:00": "2026-11-02 08:00:00",
    "2026-11-02 10:00:00 -0500": "2026-11-02 15:00:00",
    "2026-11-02 10:00:00 Europe/Berlin": "2026-11-02 09:00:00",
    "2.11.2026 10:00": "2026-11-02 10:00:00",
    "02.11.2026, 10:00:00": "2026-11-02 10:00:00",
    "13/11/2026 10:00": "2026-11-13 10:00:00",
    "1793613600": "2026-11-02 10:00:00",
    "1793613600000": "2026-11-02 10:00:00",
    "02/11/2026 10:00": "None",
    "2026-11-02 10:00:00 XYZT": "None",
    "10:00": "None",
    "Monday": "None",
    "November 2026": "None",
}


@pytest.mark.parametrize("text", TIMES)
def test_a_time_is_read_in_the_one_way_that_it_can_mean_or_not_at_all(text):
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        assert str(submission_files.submitted_at({"timestamp.txt": f"{text}\r\n".encode(encoding)})) == TIMES[text]


def test_a_time_that_cannot_be_read_is_told(toy, capsys):
    (toy.root / "submitted" / "ben" / LESSON / "timestamp.txt").write_text("yesterday, I think")
    grade(toy)
    line = "the time in submitted/ben/07_toy/timestamp.txt cannot be read: no late penalty was computed"
    assert line in capsys.readouterr().err
    assert "cannot be read: no late penalty" in report.page(marks.read(toy.course), toy.root / "report.html")


def test_a_score_by_hand_for_another_answer_stays_and_is_flagged(toy):
    toy.enter("ben", "07-ex2-square", 1.5)
    grade(toy)
    assert "handed in anew" not in toy.page("ben")
    toy.hand_in("ben", submission(ex3="def half(x):\n    return 0\n"))
    grade(toy)
    assert points(toy, "ben", "07-ex2-square") == 1.5 and "handed in anew" in toy.page("ben")
    found = [one for one in marks.read(toy.course).submissions if one.student == "ben"]
    assert any("handed in anew" in reason for reason in report._reasons(found[0]))
    with toy.course.gradebook() as gradebook:
        nb = gradebook.find_submission_notebook(LESSON, LESSON, "ben")
        assert [grade.name for grade in nb.grades if grade.needs_manual_grade] == ["07-ex2-square-test"]
    toy.runs.clear()
    toy.enter("ben", "07-ex2-square", 2.0)
    grade(toy)
    assert "handed in anew" not in toy.page("ben") and not toy.runs
    assert not autograde(toy, "ben"), "nbgrader's command, with --force"
    assert points(toy, "ben", "07-ex2-square") == 2.0 and "handed in anew" not in toy.page("ben")


def autograde(toy, student):
    """What `nbgrader autograde --force` and formgrader's button do; '' or what went wrong."""
    return library.convert(Autograde, toy.course._config(assignment_id=LESSON, student_id=student))


def test_where_nbgraders_command_fails_the_next_grade_tries_again(toy, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(running, "run_submission", lambda *_: 1 / 0)
        assert "not graded, 0 points for now" in autograde(toy, "ada")
    assert toy.course.totals()["ada", LESSON][0] == 0
    grade(toy)
    assert toy.course.totals()["ada", LESSON] == (6, 6) and toy.runs == [("ada", LESSON)]


# --- exercises change -------------------------------------------------------------------------------------


def rename_half(nb):
    for name in ("07-ex3-half", "07-ex3-half-test"):
        one = cell(nb, name)
        one.id = one.metadata.nbgrader.grade_id = name.replace("half", "halved")


def test_dates_points_and_comments_outlive_a_change_of_another_exercise(toy):
    toy.enter("ben", "07-ex2-square", 1.5, "Sign wrong.", extra=0.5)
    with toy.course.gradebook() as gradebook:
        gradebook.update_or_create_assignment(LESSON, duedate=datetime.datetime(2026, 4, 30))
        gradebook.grant_extension(LESSON, "ben", days=3)
    toy.teach(rename_half)
    grade(toy)
    assert points(toy, "ben", "07-ex2-square") == 2.0 and "Sign wrong." in toy.page("ben")
    with toy.course.gradebook() as gradebook:
        found = gradebook.find_submission(LESSON, "ben")
        assert found.assignment.duedate == datetime.datetime(2026, 4, 30)
        assert found.extension == datetime.timedelta(days=3)
    assert not toy.course.record().homeless(LESSON)


def test_nothing_is_lost_if_the_grader_ends_between_forgetting_and_entering(toy, monkeypatch):
    toy.enter("ben", "07-ex2-square", 1.5)
    toy.teach(rename_half)
    with monkeypatch.context() as patch:
        patch.setattr(library, "generate_assignment", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            toy.course.prepare(LESSON)
    grade(toy)
    assert points(toy, "ben", "07-ex2-square") == 1.5


def test_ids_that_jupyterlab_gave_are_no_change(toy):
    """An exercise is known by its grade_id."""
    toy.enter("ben", "07-ex2-square", 1.5)

    def change(nb):
        for number, one in enumerate(nb.cells):
            one.id = f"x{number}"
            one.source += "\n"

    toy.teach(change)
    toy.hand_in("cyd", submission(ex2=WRONG_SQUARE))
    grade(toy)
    assert points(toy, "ben", "07-ex2-square") == 1.5
    assert toy.row("cyd")["score"] == "4" and toy.row("ada")["score"] == "6"


# --- the record, which nbgrader's gradebook shows ---------------------------------------------------------

SQUARE = (LESSON, "ben", "07-ex2-square")
DUE, DAY = datetime.datetime(2026, 10, 30, 12), datetime.timedelta(days=1)


@pytest.fixture
def entered(toy):
    """That class, with all that people can enter."""
    toy.enter("ben", "07-ex2-square", 1.5, "Sign wrong.", extra=0.25)
    with toy.course.gradebook() as gradebook:
        gradebook.update_or_create_assignment(LESSON, duedate=DUE)
        gradebook.grant_extension(LESSON, "ben", days=1)
        gradebook.update_or_create_student("ben", first_name="Ben")
    grade(toy)
    return toy


def all_is_there(toy):
    """By nbgrader's own words, and in the record."""
    with toy.course.gradebook() as gradebook:
        found = gradebook.find_grade("07-ex2-square-test", LESSON, LESSON, "ben")
        assert (found.auto_score, found.manual_score, found.extra_credit, found.score) == (0, 1.5, 0.25, 1.75)
        assert gradebook.find_comment("07-ex2-square", LESSON, LESSON, "ben").comment == "Sign wrong."
        assert gradebook.find_submission(LESSON, "ben").extension == DAY
        assert gradebook.find_assignment(LESSON).duedate == DUE and gradebook.find_student("ben").first_name == "Ben"
    known = records.read(toy.root)
    entry = known.at(*SQUARE)
    assert (entry.auto, entry.manual, entry.extra, entry.remark) == (0, 1.5, 0.25, "Sign wrong.")
    assert (known.at(LESSON).due, known.at(LESSON, "ben").extension) == (DUE.isoformat(), DAY.total_seconds())


def test_a_missing_gradebook_is_made_from_the_record_without_a_run(entered):
    (entered.root / "gradebook.db").unlink()
    grade(entered)
    all_is_there(entered)
    assert not entered.runs


@pytest.mark.parametrize("killed", [False, True])
def test_a_folder_of_before_is_taken_over_once(entered, killed):
    """With its five kinds of files; and where the grader was killed while nbgrader had forgotten the lesson."""
    known, root = records.read(entered.root).at(LESSON), entered.root
    left = {"points": {"07-ex9-gone-test": [1.0, None, False]}, "comments": {"07-ex9-gone": "Kept."}}
    by_hand = {"students": {"ben": left}}
    if killed:
        left["points"]["07-ex2-square-test"], left["comments"]["07-ex2-square"] = [1.5, 0.25, False], "Sign wrong."
        left["timestamp"], left["extension"], by_hand["duedate"] = None, 172800.0, "2026-10-19T12:00:00"
    dates = {LESSON: {"written": ["2026-10-19T12:00:00"], "entered": DUE.isoformat()}}
    dates[f"ben/{LESSON}"] = {"written": [172800.0], "entered": DAY.total_seconds()}
    graded = {f"{student}/{LESSON}": state for student, state in known.graded.items()}
    files = {
        root / "autograded/.graded.json": {LESSON: known.state, f"/{LESSON}": "tried"} | graded,
        root / "autograded/.dates.json": dates,
        root / f"autograded/.by-hand-{LESSON}.json": by_hand,
        root / f"autograded/.earlier-{LESSON}.json": {"07-ex1-double-test": ["0"]},
        root / f"submitted/.imported-{LESSON}.json": {"ben": "Ben_1_assignsubmission_file_"},
    }
    for file, content in files.items():
        file.write_text(json.dumps(content))
    (root / records.FILE).unlink()
    with entered.course.gradebook() as gradebook:  # with the dates of a course.toml that is gone
        gradebook.update_or_create_assignment(LESSON, duedate=datetime.datetime(2026, 10, 19, 12))
        gradebook.grant_extension(LESSON, "ben", days=2)
        gradebook.db.execute(sqlalchemy.text("DROP TABLE shown"))
        gradebook.db.commit()
        if killed:
            gradebook.remove_assignment(LESSON)
    assert bool(entered.course.rows()) != killed and all(map(os.path.isfile, files)), "reading takes nothing over"
    grade(entered)
    all_is_there(entered)
    assert not any(map(os.path.exists, files)) and bool(entered.runs) == killed
    known = records.read(root)
    assert known.at(LESSON, "ben", "07-ex9-gone").manual == 1 and "07-ex9-gone" in known.homeless(LESSON)
    found = known.at(LESSON)
    assert (found.tried, found.imported) == ("tried", {"ben": "Ben_1_assignsubmission_file_"}) and found.earlier


@pytest.mark.parametrize("place", [(records, "save"), (view, "show"), (view, "_note")])
def test_what_is_entered_before_and_after_a_kill_is_kept_wherever_it_was(entered, monkeypatch, capsys, place):
    """After the record is written, and before and after the gradebook is; no date of the file is taken for an entry."""
    (entered.root / "course.toml").write_text("[lessons.07]\ndue = 2026-10-19T12:00:00Z\n")
    grade(entered)
    (entered.root / "course.toml").write_text("[lessons.07]\ndue = 2026-10-21T12:00:00Z\n")
    entered.hand_in("ada", submission(ex1=None))
    entered.enter("ada", "07-ex3-half", 2.5)
    real = getattr(*place)
    with monkeypatch.context() as patch:

        def killed(*arguments):
            result = real(*arguments)
            if records.read(entered.root).at(LESSON, "ada", "07-ex1-double").auto == 0:
                raise KeyboardInterrupt
            return result

        patch.setattr(*place, killed)
        with pytest.raises(KeyboardInterrupt):
            entered.course.grade(jobs=1, solutions=False)
    entered.enter("ada", "07-ex2-square", 1.0)
    (entered.root / "course.toml").unlink()
    capsys.readouterr()
    grade(entered)
    all_is_there(entered)
    assert {name: entered.row("ada")[name] for name in ("ex1", "ex2", "ex3")} == {"ex1": "0", "ex2": "1", "ex3": "2.5"}
    assert not records.read(entered.root).conflicts and "does not count" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["gradebook.db", records.FILE])
def test_where_an_old_copy_was_put_back_and_both_differ_both_are_kept(entered, capsys, name):
    shutil.copy(entered.root / name, entered.root / "copy")
    entered.enter("ben", "07-ex2-square", 1.0)
    grade(entered)
    shutil.copy(entered.root / "copy", entered.root / name)
    if name == "gradebook.db":
        entered.enter("ben", "07-ex2-square", 2.0)
    capsys.readouterr()
    grade(entered)
    counts, other = (2.0, 1.0) if name == "gradebook.db" else (1.0, 1.5)
    said = f"07_toy/ben/07-ex2-square, manual: {counts} in the gradebook counts, {other} in the record does not"
    assert said in capsys.readouterr().err and said in records.read(entered.root).conflicts
    grade(entered)
    assert records.read(entered.root).at(*SQUARE).manual == counts and said not in capsys.readouterr().err


def test_nobody_enters_anything_while_the_gradebook_is_written_and_a_damaged_record_is_told(entered, capsys):
    database = sqlite3.connect(entered.root / "gradebook.db", timeout=0.1)
    with entered.course.writing(), pytest.raises(sqlite3.OperationalError, match="locked"):
        database.execute("UPDATE grade SET manual_score = 3")
    database.close()
    (entered.root / records.FILE).write_text("{")
    assert main([*GRADE, str(entered.root)]) == 2 and "is damaged" in capsys.readouterr().err.splitlines()[-1]
    (entered.root / records.FILE).unlink()
    grade(entered)
    all_is_there(entered)


# --- one grader at a time ---------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from autograder.grade.jail import outside
from autograder.grade.nbgrader import lock
with lock.held(Path(sys.argv[1]), "autograder grade"):
    print("held", flush=True)
    time.sleep(3600)
"""


@pytest.fixture
def other(tmp_path):
    """Another process that grades the course in this folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_the_lock_says_who_holds_it_and_a_kill_frees_it(tmp_path, other):
    now = f"{datetime.datetime.now():%H:}"
    said = rf"`autograder grade` has been running since {now}\d\d \(process"
    with pytest.raises(lock.CourseInUseError, match=said), lock.held(tmp_path, "autograder grade"):
        pass
    os.kill(other.pid, signal.SIGKILL)
    other.wait()
    with lock.held(tmp_path, "autograder grade"), lock.held(tmp_path, "nbgrader autograde"):
        pass


@pytest.mark.thorough
def test_every_command_that_writes_grades_waits_its_turn(toy, other, capsys):
    for command in ("grade", "regrade"):
        assert main([command, "--course", str(toy.root), "--no-jail"]) == 2
        assert "are being written: `autograder grade` has been running since" in capsys.readouterr().err
    nbgrader = [sys.executable, "-m", "nbgrader"]
    for command in ("autograde", "generate_feedback", "generate_assignment", "release_feedback", "collect"):
        done = subprocess.run([*nbgrader, command, LESSON], cwd=toy.root, capture_output=True, text=True)
        assert done.returncode and "are being written" in done.stderr, done.stderr
        assert "Traceback" not in done.stderr.split("are being written")[0]


def test_two_at_once_lose_no_mark(toy):
    """One grades, the other says that it has to wait."""
    for number in range(6):
        toy.hand_in(f"s{number}", submission())
    command = [sys.executable, "-m", "autograder", *GRADE, toy.root]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate() for process in both]
    assert sorted(process.returncode for process in both) == [0, 2]
    assert sum("are being written" in err for _, err in said) == 1 and "Traceback" not in said[0][1] + said[1][1]
    assert all(toy.row(f"s{number}")["score"] == "6" for number in range(6))


def test_a_submission_that_failed_is_not_remembered_as_graded(toy, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("autograder.grade.running.workers._attempt", lambda task: (task, None, OSError("no room")))
        assert toy.course.grade(force=True, jobs=1, solutions=False)
    assert toy.row("ada")["score"] == "0"
    assert "The autograder failed on this notebook" in toy.page("ada")
    assert "Your instructor writes" not in toy.page("ada") and "All tests" not in toy.page("ada")
    grade(toy)
    assert toy.row("ada")["score"] == "6"


# --- trouble ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("database is locked", "in use by another program"),
        ("database or disk is full", "the disk is full: make room"),
        ("file is not a database", "damaged"),
        ("attempt to write a readonly database", "check its owner"),
    ],
)
def test_trouble_with_the_database_comes_with_what_to_do(said, advice):
    error = sqlalchemy.exc.OperationalError("UPDATE", {}, Exception(said))
    assert advice in library.trouble_with_gradebook(error)


def test_trouble_with_the_database_is_one_line_and_nothing_is_forgotten(toy, monkeypatch, capsys):
    toy.hand_in("cyd", submission())

    def fail(*_, **__):
        raise sqlalchemy.exc.OperationalError("UPDATE", {}, Exception("database is locked"))

    with monkeypatch.context() as patch:
        patch.setattr("autograder.grade.nbgrader.scoring.save", fail)
        assert main([*GRADE, str(toy.root)]) == 2
    err = capsys.readouterr().err
    assert "in use by another program" in err.splitlines()[-1] and "Traceback" not in err
    assert toy.row("ada")["score"] == "6", "what was graded before stays"
    assert main([*GRADE, str(toy.root)]) == 0
    assert toy.row("cyd")["score"] == "6"


@pytest.mark.thorough
def test_a_gradebook_that_cannot_grow_is_one_line_and_the_next_run_goes_on(toy):
    for number in range(6):
        toy.hand_in(f"s{number}", submission())
    most = (toy.root / "gradebook.db").stat().st_size // 2
    command = ["prlimit", f"--fsize={most}", sys.executable, "-m", "autograder", *GRADE, toy.root]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr and "Rolling back" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("autograder: gradebook.db cannot be written on its disk: ")
    grade(toy)
    assert all(toy.row(f"s{number}")["score"] == "6" for number in range(6))


def test_a_gradebook_of_another_version_is_told(toy, capsys):
    with sqlite3.connect(toy.root / "gradebook.db") as database:
        database.execute("ALTER TABLE grade DROP COLUMN extra_credit")
    assert main([*GRADE, str(toy.root)]) == 2
    assert "nbgrader db upgrade" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.thorough
def test_ctrl_c_is_one_line_and_the_next_run_goes_on(toy):
    for number in range(3):
        toy.hand_in(f"s{number}", submission(ex1="import time\ndef double(x):\n    time.sleep(3600)\n"))
    # What runs in the background of a shell ignores Ctrl-C, and so do its children.
    heeds = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", heeds, sys.executable, "-m", "autograder", *GRADE, str(toy.root)]
    command += ["--jobs", "2", "--timeout", "3000"]
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes, start_new_session=True)
    while len(family(process.pid)) < 6:  # the server of the workers, the workers, and their kernels
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130 and "interrupted; what was finished is kept" in err.splitlines()[-1]
    assert "Traceback" not in err, err
    for number in range(3):
        shutil.rmtree(toy.root / "submitted" / f"s{number}")
    assert main([*GRADE, str(toy.root)]) == 0


def test_python_without_asserts_grades_nothing():
    done = subprocess.run([sys.executable, "-O", "-m", "autograder", "report"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("autograder: run it without -O")
    assert "\n" not in done.stderr[:-1]


def test_short_names_of_lessons_are_enough(toy, capsys):
    for command in ("grade", "regrade", "report"):
        assert main([command, "07", "--course", str(toy.root)] + ["--no-jail"] * (command != "report")) == 0
    said = capsys.readouterr().out
    assert "Nothing" not in said and "nothing" not in said


# --- where it must not be used ----------------------------------------------------------------------------


def test_a_folder_with_a_question_mark_is_refused(tmp_path, capsys):
    folder = tmp_path / "Kurs 1? x"
    (folder / "submitted" / "ada" / LESSON).mkdir(parents=True)
    (folder / "solutions" / LESSON).mkdir(parents=True)
    nbformat.write(lesson(), folder / "solutions" / LESSON / f"{LESSON}.ipynb")
    for command in ("grade", "report"):
        more = ["--no-jail"] if command == "grade" else []
        assert main([command, "--course", str(folder), *more]) in (0, 2)
        assert not list(tmp_path.glob("Kurs 1")), "a gradebook beside the course"
    assert "has a question mark in its name: rename it" in capsys.readouterr().err


def test_two_ways_to_write_an_accent_are_one_student(toy, capsys):
    decomposed, usual = "Jose\u0301", "Jos\u00e9"
    toy.hand_in(decomposed, submission())
    grade(toy)
    assert toy.row(usual)["score"] == "6" and (toy.root / "submitted" / usual).is_dir()
    toy.hand_in(decomposed, submission(ex2=WRONG_SQUARE))
    grade(toy)
    assert toy.row(usual)["score"] == "6" and "looks the same" in capsys.readouterr().err


def test_names_that_differ_only_in_case_are_told(toy, capsys):
    for name in ("ben", "Ben"):
        toy.hand_in(name, submission())
    grade(toy)
    assert "submitted/Ben and submitted/ben are graded as two students: is it one?" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "said"), [("O'Brien", 'cannot take "\'"'), ("nی\u200cما", "invisible sign U+200C")])
def test_a_name_that_nbgrader_cannot_take_is_told_with_the_sign(toy, capsys, name, said):
    toy.hand_in(name, submission())
    grade(toy)
    assert said in capsys.readouterr().err
    page = report.page(marks.read(toy.course), toy.root / "report.html")
    assert "rename the folder, for instance to the login" in page and "Not graded yet" not in page


@pytest.mark.parametrize("jail", [[], ["--no-jail"]], ids=["jail", "no jail"])
def test_a_long_folder_for_temporary_files_is_told(toy, jail):
    folder = toy.root / ("é" * 40)
    folder.mkdir()
    command = [sys.executable, "-m", "autograder", "grade", "--course", toy.root, *jail]
    done = subprocess.run(command, env={**os.environ, "TMPDIR": str(folder)}, capture_output=True, text=True)
    assert done.returncode == 2 and "set TMPDIR to a shorter one" in done.stderr.splitlines()[-1]


def test_a_terminal_without_utf_8_gets_the_table(toy):
    command = [sys.executable, "-m", "autograder", *GRADE, toy.root]
    done = subprocess.run(command, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, text=True)
    assert done.returncode == 0 and "ada" in done.stdout and "codec" not in done.stderr


def test_a_bubblewrap_that_does_not_start_is_told_apart_from_none(tmp_path, monkeypatch):
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(outside.JailError) as caught:
        outside.Jail()
    said = str(caught.value)
    assert "which is installed" in said and "uid map: Permission denied" in said and "apt-get" not in said


# --- tools of the week ------------------------------------------------------------------------------------


def test_one_student_is_graded_again_by_name(toy, capsys):
    before = toy.page("ada")
    arguments = [*GRADE, str(toy.root), "07"]
    toy.hand_in("ada", submission(ex1=None))
    assert main([*arguments, "--student", "ben", "--force"]) == 0
    assert toy.page("ada") == before and toy.row("ada")["score"] == "6", "she waits for the next run"
    assert main([*arguments, "--student", "bob"]) == 2
    assert "there is no folder submitted/bob: did you mean ben?" in capsys.readouterr().err


def test_answers_are_written_as_files_with_what_was_given(toy, tmp_path, capsys):
    (toy.root / "submitted" / "mia" / LESSON).mkdir(parents=True)
    for _ in range(2):
        assert main(["answers", str(tmp_path / "copies"), "07", "--course", str(toy.root)]) == 0
    said = capsys.readouterr()
    assert "The answers in 2 notebooks are in" in said.out and "mia 07_toy: not graded yet" in said.err
    folder = tmp_path / "copies" / LESSON
    assert (folder / "submissions" / "ben" / "07-ex2-square.py").read_text() == WRONG_SQUARE
    assert "NotImplementedError" in (folder / "base" / "07-ex2-square.py").read_text()
    assert sorted(path.name for path in (folder / "submissions").iterdir()) == ["ada", "ben"]
    assert not list(folder.rglob("*test*"))
    (folder / "mine.txt").write_text("")
    (folder / "submissions" / "gone").mkdir()
    assert main(["answers", str(tmp_path / "copies"), "07", "--course", str(toy.root)]) == 0
    assert (folder / "mine.txt").is_file() and not (folder / "submissions" / "gone").exists()
    assert main(["answers", str(toy.root / "solutions"), "07", "--course", str(toy.root)]) == 2
    assert "exists, and `autograder answers` has not written it" in capsys.readouterr().err
    assert (toy.root / "solutions" / LESSON / f"{LESSON}.ipynb").is_file()
