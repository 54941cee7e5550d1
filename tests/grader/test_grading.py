"""`autograder grade`: the example class gets the expected points, and a course survives its instructor."""

import csv
import html.parser
import json
import os
import re
import resource
import runpy
import shutil
import signal
import subprocess
import sys
import time

import nbformat
import pytest
from nbformat.v4 import new_code_cell

from autograder.__main__ import main
from autograder.checks.expect import DIED, HANG, RAISED, WRONG, CheckFailed
from autograder.desk import marks, report
from autograder.grade import course as course_module
from autograder.grade import example_class, jail, record
from autograder.grade.course import RETRY_LATER, Course
from autograder.grade.jail import kernel
from autograder.grade.running import pictures, workers
from autograder.lesson import notebook
from ranks.ledger import Ledger, Message
from tests.helpers.hostile_markup import assert_harmless
from tests.helpers.notebook_regions import split
from tests.helpers.patience import PATIENCE
from tests.helpers.toy_course import LESSON, WRONG_SQUARE, Toy, cell, submission

pytestmark = pytest.mark.jail


#: The lessons of the example class that the tests grade; `make thorough` grades all that was handed in.
LESSONS = ("03_step", "04_accumulation")


def grade(*arguments):
    """Run the command as a person would; (exit status, stdout, stderr)."""
    command = [sys.executable, "-m", "autograder", "grade", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=7200)
    return done.returncode, done.stdout, done.stderr


# --- the example class ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example():
    """The example class, LESSONS of it graded in its scratch folder: (exit status, stdout, stderr, the course)."""
    own = notebook.ROOT / "gradebook.db"
    before = own.read_bytes() if own.exists() else None
    status, out, err = grade("--example", *LESSONS)
    assert (own.read_bytes() if own.exists() else None) == before, "the instructor's gradebook was touched"
    return status, out, err, Course(example_class.EXAMPLE_COURSE, 20)


@pytest.mark.slow
def test_the_example_class_gets_the_expected_points(example):
    status, out, err, course = example
    assert status == 0, err
    expected = {key: score for key, score in all_expected().items() if key[1] in LESSONS}
    assert {key: score for key, (score, _) in course.scores().items() if key[1] in LESSONS} == expected
    assert len({student for student, _, _ in expected}) >= 10
    assert re.search("^student-01 .* 27/27", out, re.MULTILINE)
    assert re.search("^student-11 .* –", out, re.MULTILINE), "– stands for a lesson that was not handed in"


@pytest.mark.slow
@pytest.mark.thorough
def test_the_whole_example_class_gets_the_expected_points():
    status, _out, err = grade("--example")
    assert status == 0, err
    scores = Course(example_class.EXAMPLE_COURSE, 20).scores()
    assert {key: score for key, (score, _) in scores.items()} == all_expected()


def all_expected():
    return example_class.read_expected(example_class.EXAMPLE / "expected.csv")


@pytest.mark.slow
def test_a_second_run_grades_nothing_and_is_quick(example):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    status, out, err = grade("--example", *LESSONS)
    assert (status, out) == (0, example[1])
    again = set(re.findall(r"graded (student-\d+ \w+)", err))
    assert again <= set(re.findall(rf"(student-\d+ \w+): {RETRY_LATER}", example[2])), (
        "only what others kept from its time"
    )
    if not again:
        assert not re.search(r"[1-9]\d*%\|", err), "the bar says that it prepares, and never moves"
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 15, "seconds of a processor"


@pytest.mark.slow
def test_every_lost_mark_of_the_example_class_is_explained(example):
    course = example[3]
    lost = {row[:3] for row in course.rows() if row.score < row.max_score}
    assert lost
    with course.gradebook() as gradebook:
        for student, name, exercise in lost:
            comment = gradebook.find_comment(exercise, name, name, student)
            assert len(comment.auto_comment) > 20, (student, exercise)


@pytest.mark.slow
def test_the_feedback_names_the_mistake(example):
    page = (example_class.EXAMPLE_COURSE / "feedback/student-03/03_step/03_step.html").read_text()
    assert "You added up the gradients of the micro-batches" in page


@pytest.mark.slow
def test_no_feedback_shows_a_hidden_test_or_runs_anything(example):
    pages = sorted(example_class.EXAMPLE_COURSE.glob("feedback/*/*/*.html"))
    assert len(pages) >= 10
    for path in pages:
        text = path.read_text()
        assert_harmless(text, formulas=True)
        plain = html.unescape(re.sub(r"<[^>]*>", "", text))
        hidden, shown = split(path.stem, "HIDDEN TESTS")
        leaked = [line for line in hidden if len(line) >= 8 and line not in shown and line in plain]
        assert not leaked, path


def test_the_points_of_the_example_class_follow_from_the_lessons(tmp_path):
    made = runpy.run_path(str(example_class.EXAMPLE / "make.py"))["make"](tmp_path)
    known = example_class.read_expected(example_class.EXAMPLE / "expected.csv")
    assert {tuple(row[:3]): float(row[3]) for row in made} == known, "run examples/class/make.py"
    assert {path.parts[-3:-1] for path in tmp_path.glob("submitted/*/*/*.ipynb")} == {key[:2] for key in known}


# --- a course and its instructor ------------------------------------------------------------------------


@pytest.fixture
def course(tmp_path):
    """A toy course with two submissions, not graded yet."""
    toy = Toy(tmp_path / "class")
    toy.hand_in("ada", submission())
    toy.hand_in("bob", submission(ex2=WRONG_SQUARE))
    return toy


def test_grade_writes_table_csv_and_feedback_and_regrades_only_what_changed(course, capsys):
    assert main(["grade", "--course", str(course.root)]) == 0
    out, err = capsys.readouterr()
    assert re.search(r"ada +6/6\nbob +4/6", out)
    assert err.count("3/3") >= 1, "two submissions and the solution of the lesson"
    rows = list(csv.DictReader((course.root / "grades.csv").open()))
    assert rows[1] == {
        "student_id": "bob", "assignment": LESSON, "score": "4", "max_score": "6", "ex1": "1", "ex2": "0", "ex3": "3",
    }  # fmt: skip
    stamps = {student: os.stat(page(course, student)).st_mtime_ns for student in ("ada", "bob")}
    course.hand_in("bob", submission())
    assert main(["grade", "--course", str(course.root), LESSON]) == 0
    assert re.search(r"bob +6/6", capsys.readouterr().out)
    assert os.stat(page(course, "ada")).st_mtime_ns == stamps["ada"]
    assert os.stat(page(course, "bob")).st_mtime_ns > stamps["bob"]
    page(course, "ada").unlink()  # lost, so made again
    shutil.rmtree(course.root / "submitted" / "bob")  # gone, so not listed
    assert main(["grade", "--course", str(course.root)]) == 0
    assert page(course, "ada").exists()
    assert "bob" not in capsys.readouterr().out


def page(course, student):
    return course.root / "feedback" / student / LESSON / f"{LESSON}.html"


def test_a_limit_that_others_may_have_caused_is_tried_in_one_more_grading_and_then_stays(course, capsys, monkeypatch):
    monkeypatch.setattr(course_module, "_decided_by_others", lambda executed: True)

    def tried(**how):
        assert not course.course.grade(jobs=1, solutions=False, **how)
        said = capsys.readouterr().err
        return [words for words in ("once more", "--student ada --force") if words in said]

    shutil.rmtree(course.root / "submitted" / "bob")
    assert [tried() for _ in range(4)] == [["once more"], ["--student ada --force"], [], []]
    assert tried(force=True) == ["--student ada --force"]
    course.hand_in("ada", submission(ex1="def double(x):\n    return 0\n"))
    assert tried() == ["once more"]


def test_imports_begin_early_only_where_something_new_was_handed_in(course, monkeypatch):
    begun = []
    monkeypatch.setattr(workers, "begin_to_import", lambda: begun.append(1))
    grade = ["grade", "--course", str(course.root), "--jobs", "1", "--timeout", "10"]
    assert main(grade) == 0 and len(begun) == 1
    assert main(grade) == 0 and len(begun) == 1, "nothing is new"
    path = course.root / "submitted" / "ada" / LESSON / f"{LESSON}.ipynb"
    copy = path.with_suffix(".copy")
    shutil.copy2(path, copy)  # keeps the time at which it was written, as nbgrader does when it collects
    copy.rename(path)
    assert main(grade) == 0 and len(begun) == 2
    assert main([*grade, "--force"]) == 0 and len(begun) == 3


@pytest.mark.thorough
def test_a_lost_gradebook_is_filled_again(course):
    assert not course.course.grade()
    (course.root / "gradebook.db").unlink()
    assert not course.course.grade()
    assert course.points("bob") == {"ex1": 1.0, "ex2": 0.0, "ex3": 3.0}


@pytest.mark.thorough
def test_a_run_that_was_killed_is_finished_by_the_next(course):
    for number in range(6):
        course.hand_in(f"carol-{number}", submission())
    command = [sys.executable, "-m", "autograder", "grade", "--course", str(course.root)]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + PATIENCE
    while running.poll() is None and time.monotonic() < deadline:
        if record.read(course.root).at(LESSON).graded:
            break  # somebody's is
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    assert len(record.read(course.root).lessons[LESSON].graded) < 4, "of eight"
    assert not course.course.grade()
    assert len(course.course.totals()) == 8
    assert course.points("carol-5") == {"ex1": 1.0, "ex2": 2.0, "ex3": 3.0}


def add_demonstration(nb):
    """A cell that only shows something, in a notebook that says what its setup is."""
    cell(nb, "07-imports").metadata.tags = ["setup"]
    nb.cells.append(new_code_cell("print('a show')", id="07-show"))
    return nb


@pytest.mark.thorough
def test_what_the_lesson_shows_is_run_only_on_request(course):
    course.teach(add_demonstration)
    course.hand_in("ada", add_demonstration(submission()))
    for requested in (False, True):
        course.course.settings.RunCells.demonstrations = requested
        assert not course.course.grade(force=True)
        assert course.points("ada") == {"ex1": 1.0, "ex2": 2.0, "ex3": 3.0}
        graded = nbformat.read(course.root / "autograded" / "ada" / LESSON / f"{LESSON}.ipynb", as_version=4)
        assert [out.text for out in graded.cells[-1].outputs] == ["a show\n"] * requested
        assert ("a show" in course.page("ada")) == requested
        assert ("were not run" in course.page("ada")) != requested


def more_points(nb):
    cell(nb, "07-ex3-half-test").metadata.nbgrader.points = 10


def drop_exercise(nb):
    nb.cells = [one for one in nb.cells if not one.id.startswith("07-ex3")]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("change", "ada", "bob"), [(more_points, (13.0, 13.0), (11.0, 13.0)), (drop_exercise, (3.0, 3.0), (1.0, 3.0))]
)
def test_a_lesson_with_other_points_or_exercises_is_graded_anew(course, change, ada, bob):
    course.course.grade()
    course.teach(change)
    assert not course.course.grade()
    assert course.course.totals() == {("ada", LESSON): ada, ("bob", LESSON): bob}


@pytest.mark.thorough
def test_when_the_machine_fails_no_old_score_stands_and_the_command_says_so(course, capsys, monkeypatch):
    course.course.grade()
    monkeypatch.setattr(kernel.JailedKernel, "start", lambda self: 1 / 0)
    monkeypatch.setattr(workers.Workers, "run", lambda self, tasks: map(workers._attempt, tasks))  # in this process
    monkeypatch.setattr(Course, "try_solutions", lambda *_: None)
    course.hand_in("ada", submission(ex3=None))
    assert main(["grade", "--course", str(course.root), "--timeout", "5"]) == 1
    assert "ada 07_toy: not graded, 0 points for now" in capsys.readouterr().err
    assert course.points("ada") == {"ex1": 0.0, "ex2": 0.0, "ex3": 0.0}
    assert "ask your instructor" in course.comment("ex1")
    assert course.points("bob")["ex1"] == 1.0
    monkeypatch.undo()
    assert not course.course.grade()  # tried again, although nothing changed
    assert course.points("ada") == {"ex1": 1.0, "ex2": 2.0, "ex3": 0.0}


@pytest.mark.thorough
def test_a_broken_test_costs_no_student_anything(course, capsys):
    assert not course.course.grade()
    capsys.readouterr()
    course.teach(lambda nb: setattr(cell(nb, "07-ex1-double-test"), "source", "import no_such_module"))
    assert main(["grade", "--course", str(course.root)]) == 2
    said = one_line(capsys.readouterr().err)
    assert "nothing was graded: the solution of 07_toy fails its own 07-ex1-double-test here" in said
    assert "no_such_module" in said
    assert course.points("ada") == {"ex1": 1.0, "ex2": 2.0, "ex3": 3.0}


def one_line(text):
    assert text.count("\n") == 1, text
    return text


def test_nothing_to_grade_says_where_submissions_go(tmp_path, capsys):
    assert main(["grade", "--course", str(tmp_path)]) == 0
    assert f"{tmp_path}/submitted/STUDENT/LESSON/LESSON.ipynb" in one_line(capsys.readouterr().out)
    assert not list(tmp_path.iterdir())


def test_a_mistyped_lesson_folder_is_named(course, capsys):
    (course.root / "submitted" / "ada" / LESSON).rename(course.root / "submitted" / "ada" / "7_toy")
    course.course.grade()
    assert "submitted/ada/7_toy is not a lesson" in capsys.readouterr().err


def test_who_was_graded_and_is_not_there_any_more_is_named(tmp_path, capsys):
    for place in ("submitted/ada/03_step", *(f"autograded/{who}/03_step" for who in ("ada", "ben", "cyd"))):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "autograded/dan/99_other").mkdir(parents=True)
    Course(tmp_path, jail=False)._check_setup()
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "any more" in line)
    assert "ben 03_step, cyd 03_step; if they have left" in line and "ada" not in line and "dan" not in line


@pytest.mark.parametrize("name", ["ada ", "<b>eve</b>", "eve\x1b[2J", b"eve\xff"])
def test_a_folder_that_nbgrader_takes_for_another_student_is_named_and_skipped(course, capsys, name):
    course.course.grade()
    before = course.course.scores()
    capsys.readouterr()
    folder = os.path.join(os.fsencode(course.root), b"submitted", os.fsencode(name), LESSON.encode())
    os.makedirs(folder)
    with open(os.path.join(folder, f"{LESSON}.ipynb".encode()), "w") as file:
        file.write(nbformat.writes(submission(ex1=None, ex2=None, ex3=None)))
    assert course.course.grade() == [] and course.course.scores() == before
    said = capsys.readouterr().err
    assert "is skipped: " in said and "rename the folder" in said and "\x1b" not in said


def test_names_that_a_spreadsheet_would_run_are_quoted(course):
    course.hand_in("=1+1", submission())
    course.course.grade()
    assert "\n'=1+1,07_toy,6,6" in (course.root / "grades.csv").read_text()


# --- the jail, seen by the instructor and the student ---------------------------------------------------


def test_without_bubblewrap_grading_stops_and_says_what_to_do(course, capsys, monkeypatch):
    monkeypatch.setattr(jail, "missing", lambda: True)
    assert main(["grade", "--course", str(course.root)]) == 2
    said = one_line(capsys.readouterr().err)
    assert "apt-get install bubblewrap" in said and "--no-jail" in said
    assert not course.course.totals()


def test_without_a_jail_it_says_so_once_and_grades_all_the_same(course, capsys, monkeypatch):
    monkeypatch.setattr(jail, "missing", lambda: True)
    assert main(["grade", "--course", str(course.root), "--no-jail"]) == 0
    assert capsys.readouterr().err.count("Without a jail, submissions run with your rights") == 1
    assert course.points("ada") == {"ex1": 1.0, "ex2": 2.0, "ex3": 3.0}
    assert course.points("bob") == {"ex1": 1.0, "ex2": 0.0, "ex3": 3.0}


def test_only_declared_files_are_taken_and_the_others_are_named(course):
    source = "import os\ndef square(x):\n    assert os.listdir() == ['a.csv'], os.listdir()\n    return x * x\n"
    folder = course.hand_in("dan", submission(ex2=source)).parent
    (folder / "math.py").write_text("raise SystemExit")
    (folder / "a.csv").write_text("1")
    (folder / "b.csv").symlink_to("/etc/hostname")
    course.course.settings.RunCells.data_files = ["*.csv"]
    assert not course.course.grade_one("dan", LESSON)
    assert course.points("dan") == {"ex1": 1.0, "ex2": 2.0, "ex3": 3.0}
    page = course.page("dan")
    assert "math.py: not asked for" in page and "b.csv: a link" in page and "a.csv:" not in page


def test_what_the_exchange_needs_to_return_the_feedback_goes_with_it(course):
    """`nbgrader release_feedback` reads both files in the feedback's folder."""
    folder = course.hand_in("dan", submission()).parent
    (folder / "timestamp.txt").write_text("2026-11-22 10:00:00.000000 UTC")
    (folder / "submission_secret.txt").write_text("ab12")
    assert not course.course.grade_one("dan", LESSON)
    back = course.root / "feedback" / "dan" / LESSON
    assert (back / "submission_secret.txt").read_text() == "ab12"
    assert (back / "timestamp.txt").read_text().startswith("2026-11-22")
    assert "submission_secret" not in course.page("dan"), "it is not among the files that were left out"
    (folder / "submission_secret.txt").unlink()
    (folder / "submission_secret.txt").symlink_to("/etc/hostname")
    assert not course.course.grade_one("dan", LESSON)
    assert not (back / "submission_secret.txt").exists(), "a link is not followed"


def test_a_notebook_that_is_a_link_is_not_followed(course):
    path = course.hand_in("eve", None)
    path.symlink_to(course.root / "submitted" / "ada" / LESSON / f"{LESSON}.ipynb")
    assert not course.course.grade_one("eve", LESSON)
    assert course.points("eve") == {"ex1": 0.0, "ex2": 0.0, "ex3": 0.0}
    assert "is a link: hand in the notebook itself" in course.comment("ex1", "eve")


def test_a_failed_check_on_ranks_shows_what_they_sent():
    error = CheckFailed("the sum on rank 1 is wrong: got 3, expected 4")
    error.ledger = Ledger([Message(0, "send", 1, 8, 0.0, 0.1), Message(1, "recv", 0, 8, 0.0, 0.1)], 2)
    drawn = pictures.picture_of(error)
    assert drawn["png"].startswith("iVBOR") and "Messages of 2 ranks" in drawn["alt"]
    assert pictures.picture_of(CheckFailed("wrong")) == {} == pictures.picture_of(None)
    error.ledger = Ledger([Message(0, "send", 1, 8, 0.0)] * 500, 2)
    assert pictures.picture_of(error) == {}, "nobody could see anything in it"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (WRONG, "the loss on rank 0 is wrong: got -inf, expected 3.00158"),
        (WRONG, "the gradient on rank 1 is wrong at index (0, 2): got 3, expected 4"),
        (WRONG, "rank 0 sends 3 messages, expected 2: all_reduce of 8 bytes is one too many"),
        (WRONG, "in Copy's backward, rank 0 put 16 bytes into all_reduce, expected 8 (4 numbers)"),
        (WRONG, "rank 0 called all_gather 8 times in 4 steps, expected one a step"),
        (WRONG, "finish() waited for no all-reduce"),
        (WRONG, "a message was sent before the ValueError"),
        (HANG, "With 2 ranks, rank 0 waits for rank 1"),
    ],
)
def test_messages_are_shown_where_they_explain_what_failed(kind, said):
    assert pictures.is_about_messages(kind, said)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (WRONG, "expected ValueError, but nothing was raised"),
        (WRONG, "rank 0 raised nothing, expected a ValueError that names heads"),
        (WRONG, "on rank 0, no CheckpointError was raised"),
        (WRONG, "the ValueError should name 'sends', but it says 'no'"),
        (WRONG, "the layer holds 216 numbers of other ranks' pieces, behind a view or in a copy"),
        (WRONG, "a vector that rank 0 received shares its memory with a shard"),
        (WRONG, "'momentum_buffer' on rank 0 shares its memory with the optimizer"),
        (WRONG, "on rank 0, the given MLP has another fc than before: leave the caller's block as it is"),
        (WRONG, "the dtype of the result is torch.float32, expected torch.bfloat16"),
        (RAISED, "With 2 ranks, rank 1 raised ValueError: it sends nothing"),
        (DIED, "With 2 ranks, rank 1 ended"),
    ],
)
def test_no_messages_are_shown_where_they_explain_nothing(kind, said):
    assert not pictures.is_about_messages(kind, said)


def test_every_file_that_could_be_work_is_graded_or_named(course, capsys):
    submitted = course.root / "submitted"
    places = ["ada_1234_07_toy.ipynb", "Moodle.zip", "dan/07_toy.ipynb", "07_toy/eve.ipynb", "hal/07_toy.pdf"]
    places += ["moodle/Fay_1_file_/07_toy.ipynb", "gus/07_Toy/07_toy.ipynb"]
    noise = ["__MACOSX/ada/07_toy/._07_toy.ipynb", "dan/._07_toy.ipynb", "ada/.ipynb_checkpoints/07_toy.ipynb"]
    noise += ["dan/photo.jpg"]
    for place in (*places, *noise):
        (submitted / place).parent.mkdir(parents=True, exist_ok=True)
        (submitted / place).write_text(json.dumps(submission()))
    assert course.course.misplaced_files() == sorted(f"submitted/{place}" for place in places)
    (submitted / "ada" / LESSON / f"{LESSON} (2).ipynb").write_text(json.dumps(submission()))
    assert not course.course.grade(solutions=False)
    said = capsys.readouterr().err
    for place in places:
        assert f"submitted/{place} is not graded: put it at submitted/STUDENT/LESSON/LESSON.ipynb" in said
    assert "MACOSX" not in said and "checkpoints" not in said and "photo" not in said
    page = report.page(marks.read(course.course), course.root / "report.html")
    assert all(place in page for place in places) and f"{LESSON} (2).ipynb lies beside the notebook" in page
    for folder in (course.root / "submitted").iterdir():
        if folder.is_dir():
            shutil.rmtree(folder)
    assert main(["grade", "--course", str(course.root), "--no-jail"]) == 0
    assert "There are 2 files in other places, such as submitted/Moodle.zip." in capsys.readouterr().out
