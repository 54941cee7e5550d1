"""`python -m autograder grade`: a class's submissions in, grades with reasons out.

A course is a folder with `submitted/STUDENT/LESSON/LESSON.ipynb`. Grading it fills `gradebook.db`, `autograded/`,
`feedback/` and `grades.csv` beside it, through nbgrader with the settings of `nbgrader_config.py`. What did not
change since it was graded is not graded again.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import csv
import functools
import hashlib
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from autograder.lessons import nbgrader_api, notebook
from autograder.lessons.files import write_whole

if TYPE_CHECKING:
    from autograder.grading.workers import Task, Workers

EXAMPLE = notebook.ROOT / "examples" / "class"
EXAMPLE_COURSE = notebook.ROOT / "_build" / "example-class"


def add_parser(subparsers) -> None:
    """Add the subcommand `grade`."""
    parser = subparsers.add_parser("grade", help="grade a class: autograde, feedback, grades.csv")
    add_arguments(parser)
    parser.add_argument("--example", action="store_true", help="grade the example class in a scratch folder")
    parser.set_defaults(run=command)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What every command that grades can be told."""
    parser.add_argument("lessons", nargs="*", metavar="LESSON", help="default: every lesson handed in")
    parser.add_argument("--course", metavar="DIR", help="the folder with submitted/ (default: the repository)")
    parser.add_argument("--force", action="store_true", help="grade again what did not change")
    parser.add_argument("--timeout", type=int, metavar="SECONDS", help="for one cell; twice that for a test cell")
    parser.add_argument("--jobs", type=int, metavar="N", help="worker processes (default: one a core)")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="a Dask scheduler whose workers run the notebooks")
    parser.add_argument("--no-jail", action="store_true", help="run submissions with your own rights")


def command(arguments: argparse.Namespace) -> int:
    """Run the subcommand; its exit status: 1 when something could not be graded, or differs from the expected."""
    if arguments.example:
        return _example(arguments)
    course = course_of(arguments)
    if not course.jobs(arguments.lessons):
        where = folder_of(arguments) / "submitted" / "STUDENT" / "LESSON" / "LESSON.ipynb"
        print(f"Nothing to grade: put each notebook at {where} and run this again.")
        return 0
    problems = course.grade(arguments.lessons, arguments.force, **workers_of(arguments))
    print(course.table())
    folder = folder_of(arguments)
    print(f"\nFeedback pages are in {folder / 'feedback'}, all points in {folder / 'grades.csv'}.")
    return 1 if problems else 0


def folder_of(arguments: argparse.Namespace) -> Path:
    """The course's folder, as short as it can be said."""
    return Path(arguments.course).expanduser() if arguments.course else Path(os.path.relpath(notebook.ROOT))


def course_of(arguments: argparse.Namespace) -> Course:
    """The course that the command line names. ValueError for a folder or lesson that is not there."""
    folder = folder_of(arguments)
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}: name the one that holds submitted/")
    course = Course(folder, arguments.timeout, not arguments.no_jail)
    course.check(arguments.lessons)
    return course


def workers_of(arguments: argparse.Namespace) -> dict:
    """What the command line says about workers, for `Course.grade`."""
    if arguments.jobs is not None and arguments.jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {arguments.jobs}")
    return {"jobs": arguments.jobs, "scheduler": arguments.scheduler or ""}


def _example(arguments: argparse.Namespace) -> int:
    course = example_course(arguments.timeout or 20, not arguments.no_jail)  # one of them never ends
    course.check(arguments.lessons)
    problems = course.grade(arguments.lessons, arguments.force, **workers_of(arguments))
    print(course.table())
    wrong = differences(course.scores(), read_expected(EXAMPLE / "expected.csv"), arguments.lessons)
    for line in wrong:
        print(line, file=sys.stderr)
    folder = EXAMPLE_COURSE.relative_to(notebook.ROOT)
    print(f"\nThe example class is in {folder}: feedback pages in {folder / 'feedback'}.")
    return 1 if problems or wrong else 0


def example_course(timeout: int | None = None, jail: bool = True) -> Course:
    """The example class, copied into a scratch folder of its own."""
    EXAMPLE_COURSE.mkdir(parents=True, exist_ok=True)
    for name, source in (("submitted", EXAMPLE / "submitted"), ("solutions", notebook.SOLUTIONS)):
        shutil.rmtree(EXAMPLE_COURSE / name, ignore_errors=True)
        shutil.copytree(source, EXAMPLE_COURSE / name, ignore=shutil.ignore_patterns(".*"))
    shutil.copy(notebook.ROOT / nbgrader_api.CONFIG, EXAMPLE_COURSE / nbgrader_api.CONFIG)
    return Course(EXAMPLE_COURSE, timeout, jail)


def read_expected(path: Path) -> dict[tuple[str, str, str], float]:
    """(student, lesson, exercise) → points, from a file with the columns student_id, assignment, exercise, score."""
    with open(path, newline="", encoding="utf-8") as file:
        return {
            (row["student_id"], row["assignment"], row["exercise"]): float(row["score"]) for row in csv.DictReader(file)
        }


def differences(scores: dict, expected: dict, lessons: list[str] | None = None) -> list[str]:
    """One line for each exercise whose points are not the expected ones."""
    lines = []
    for key in sorted(scores.keys() | expected.keys()):
        if lessons and key[1] not in lessons:
            continue
        got = scores[key][0] if key in scores else None
        if got != expected.get(key):
            lines.append(f"{' '.join(key)}: got {got}, expected {expected.get(key)}")
    return lines


class Course:
    """One class: a folder with `submitted/`, and what grading puts beside it.

    Lessons come from `solutions/` in that folder if there is one, else from the repository. timeout: seconds for a
    cell, twice that for a test cell. jail: run the submissions in one.
    """

    def __init__(self, root: Path, timeout: int | None = None, jail: bool = True):
        self.root = Path(root).resolve()  # nbgrader compares paths as text
        own = self.root / "solutions"
        self.solutions = own if own.is_dir() else notebook.SOLUTIONS
        self.timeout, self.jail = timeout, jail
        self.graded = self.root / "autograded" / ".graded.json"

    def lessons(self) -> list[str]:
        """The lessons that can be graded here."""
        return notebook.lessons(self.solutions)

    def check(self, lessons: list[str]) -> None:
        """UnknownLessonError for a lesson that cannot be graded here."""
        notebook.pick(lessons, self.solutions)

    def jobs(self, lessons: list[str] | None = None) -> list[tuple[str, str]]:
        """(student, lesson) of everything handed in."""
        wanted = lessons or self.lessons()
        return [
            (path.parent.name, path.name)
            for path in sorted((self.root / "submitted").glob("*/*"))
            if path.is_dir() and path.name in wanted and not path.parent.name.startswith(".")
        ]

    def strangers(self) -> list[str]:
        """Folders in `submitted/` that are no lesson: mistyped names, perhaps."""
        folders = [path for path in sorted((self.root / "submitted").glob("*/*")) if path.is_dir()]
        return [str(path.relative_to(self.root)) for path in folders if path.name not in self.lessons()]

    def grade(
        self, lessons: list[str] | None = None, force: bool = False, jobs: int | None = None, scheduler: str = ""
    ) -> list[str]:
        """Grade what changed, write feedback and grades.csv. One line for each submission that failed to grade.

        jobs, scheduler: as for `workers.Workers`; without a number, one worker a core.
        """
        from autograder.grading import workers

        self._say_what_is_odd()
        jobs = jobs or workers.cores()
        for lesson in sorted({lesson for _, lesson in self.jobs(lessons)}):
            self.prepare(lesson)
        done, final = self._read_graded(), self.final()
        # Before anything is graded: what changes meanwhile is graded next time.
        states = {job: self._fingerprint(*job) for job in self.jobs(lessons)}
        todo = {
            job: state for job, state in states.items()
            if force or done.get("/".join(job)) != state or job not in final
        }  # fmt: skip
        needed = sorted({lesson for _, lesson in todo})
        with workers.Workers(len(todo) + len(needed), jobs, scheduler, self.jail) as pool:
            self.try_solutions(needed, pool)
            problems = self._grade(todo, pool)
        for problem in problems:
            print(problem, file=sys.stderr)
        write_whole(self.root / "grades.csv", self.csv())
        return problems

    def _say_what_is_odd(self) -> None:
        from autograder.grading import jail

        for stranger in self.strangers():
            print(f"{stranger} is no lesson and is left out: check the folder's name", file=sys.stderr)
        if not self.jail:
            print("Without a jail: submissions run with your rights, and can pretend to pass.", file=sys.stderr)
        elif jail.missing():
            raise ValueError(jail.MISSING)

    def _grade(self, todo: dict[tuple[str, str], str], pool: Workers) -> list[str]:
        """Let workers run these submissions, and write down each one's grade as soon as it is there.

        todo: (student, lesson) → the fingerprint that it is then graded at.
        """
        from tqdm import tqdm

        done, problems = self._read_graded(), []
        tasks = (self.task(*job) for job in todo)
        bar = tqdm(total=len(todo), desc="grading", unit="notebook", disable=not todo, bar_format=BAR)
        with bar:
            for task, executed, error in pool.run(tasks):
                student, lesson = task.name
                bar.set_description_str(f"graded {student} {lesson}")
                problem = self.write_grade(student, lesson, executed, error)
                if problem:
                    problems.append(problem)
                else:
                    done["/".join(task.name)] = todo[task.name]
                    write_whole(self.graded, json.dumps(done, indent=1, sort_keys=True))
                bar.update()
        return problems

    def task(self, student: str, lesson: str) -> Task:
        """What a worker needs to run one submission; of no student: the solution itself."""
        from autograder.grading import restore, run_cells, workers

        run, source = run_cells.RunCells(config=self._config()), self.solutions / lesson
        instructor = run_cells.lesson_notebook(source / f"{lesson}.ipynb")
        files, cells, problem = run_cells.files_beside(source), instructor.cells, ""
        if student:
            folder = self.root / "submitted" / student / lesson
            nb = restore.read_file(folder / f"{lesson}.ipynb")
            files = {**run_cells.submitted_files(folder, run.data_files)[0], **files}
            cells, problem = nb.cells, nb.metadata.autograder.problem
        with self.gradebook() as gradebook:
            restored = restore.restored_notebook(cells, problem, restore.source_cells(gradebook, lesson, lesson))
        texts = map(notebook.nbformat.writes, (restored, instructor))
        return workers.Task((student, lesson), *texts, files, run.limits, run.jail, run.demonstrations)

    def prepare(self, lesson: str) -> None:
        """Bring the gradebook's version of a lesson up to date with its solution.

        ValueError when its exercises are others than before and an instructor has given points by hand.
        """
        from nbgrader.api import MissingEntry
        from nbgrader.converters import GenerateAssignment

        source = self.solutions / lesson
        state = hashlib.sha256((source / f"{lesson}.ipynb").read_bytes()).hexdigest()
        done = self._read_graded()
        with self.gradebook() as gradebook:
            try:
                cells = {cell.name for cell in gradebook.find_notebook(lesson, lesson).source_cells}
            except MissingEntry:
                cells = None
            if cells is not None and done.get(lesson) == state:
                return
            nb = notebook.nbformat.read(source / f"{lesson}.ipynb", as_version=4)
            if cells is not None and cells != {cell.id for cell in nb.cells if notebook.nbgrader_role(cell)}:
                self._forget(gradebook, lesson)
        with tempfile.TemporaryDirectory(prefix="lesson-") as folder:
            # A folder of its own: the released notebook is `make notebooks`' business.
            scratch = Path(folder).resolve()
            shutil.copytree(source, scratch / "solutions" / lesson, ignore=shutil.ignore_patterns(".*"))
            config = self._config(assignment_id=lesson, root=str(scratch))
            log = self._convert(GenerateAssignment, config)
        if log:
            raise ValueError(f"nbgrader refuses {source.relative_to(self.solutions.parent)}: {log}")
        write_whole(self.graded, json.dumps({**done, lesson: state}, indent=1, sort_keys=True))

    def try_solutions(self, lessons: list[str], pool: Workers) -> None:
        """Grade the solutions themselves, once for each state of lesson and grader.

        ValueError when one loses a mark: then tests or installation are broken, and no student shall pay for it.
        """
        from autograder.grading import run_cells, scoring

        done = self._read_graded()
        states = {lesson: self._fingerprint("", lesson) for lesson in lessons}
        tasks = [self.task("", lesson) for lesson in lessons if done.get(f"/{lesson}") != states[lesson]]
        for task, executed, error in pool.run(tasks):
            lesson = task.name[1]
            if error is not None:
                raise ValueError(f"nothing was graded: the solution of {lesson} cannot be run here: {error}")
            for test in filter(run_cells.is_test, notebook.nbformat.reads(executed, as_version=4).cells):
                if not scoring.passed(test):
                    why = scoring.reason(test, None).split("\n")[0]
                    text = f"nothing was graded: the solution of {lesson} fails its own {test.id} here: {why}"
                    raise ValueError(text)
            done[f"/{lesson}"] = states[lesson]
            write_whole(self.graded, json.dumps(done, indent=1, sort_keys=True))

    def grade_one(self, student: str, lesson: str) -> str:
        """Grade one submission here and now; '' or, in one line, why that was not possible."""
        from autograder.grading import workers

        outcome = next(workers.Workers(1).run([self.task(student, lesson)]))
        return self.write_grade(student, lesson, *outcome[1:])

    def write_grade(self, student: str, lesson: str, executed: str, error: Exception | None = None) -> str:
        """Put what a worker found into the gradebook and the feedback, through nbgrader; '' or what went wrong.

        Nothing of the submission runs here.
        """
        from nbgrader.converters import Autograde, GenerateFeedback

        from autograder.grading.run_cells import RunCells

        config = self._config(assignment_id=lesson, student_id=student)
        problem = f"{type(error).__name__}: {error}".split("\n")[0] if error else ""
        RunCells.done = {(student, lesson): executed}
        try:
            problem = problem or self._convert(_exactly_one(Autograde), config)
            problem = problem or self._convert(_exactly_one(GenerateFeedback), config)
        finally:
            RunCells.done = {}
        if problem:
            self._record_failure(student, lesson)
            return f"{student} {lesson}: not graded, 0 points for now: {problem} (more in .nbgrader.log)"
        return ""

    def final(self) -> set[tuple[str, str]]:
        """(student, lesson) of everything that has a final score for each exercise, and a feedback page."""
        rows = self.rows()
        unfinished = {row[:2] for row in rows if row.waits}
        found = {row[:2] for row in rows} - unfinished
        return {
            (student, lesson)
            for student, lesson in found
            if (self.root / "feedback" / student / lesson / f"{lesson}.html").is_file()
        }

    def scores(self) -> dict[tuple[str, str, str], tuple[float, float]]:
        """(student, lesson, exercise) → (score, most), for what is in `submitted/` now."""
        return {row[:3]: (row.score, row.max_score) for row in self.rows()}

    def totals(self) -> dict[tuple[str, str], tuple[float, float]]:
        """(student, lesson) → (score, most), late penalties taken off."""
        totals: dict[tuple[str, str], tuple[float, float]] = {}
        for row in self.rows():
            score, most = totals.get(row[:2], (-(row.penalty or 0.0), 0.0))
            totals[row[:2]] = (score + row.score, most + row.max_score)
        return totals

    def has_gradebook(self) -> bool:
        """Is there a gradebook yet? Looking into one makes it."""
        return (self.root / "gradebook.db").is_file()

    def rows(self) -> list[Row]:
        """Every grade in the gradebook of what is in `submitted/` now."""
        from nbgrader import api

        here = set(self.jobs())
        with self.gradebook() as gradebook:
            found = (
                gradebook.db.query(
                    api.SubmittedAssignment.student_id,
                    api.Assignment.name,
                    api.GradeCell.name,
                    api.Grade.score,
                    api.GradeCell.max_score,
                    api.Grade.auto_score,
                    api.Grade.manual_score,
                    api.Grade.needs_manual_grade,
                    api.SubmittedNotebook.late_submission_penalty,
                )
                .select_from(api.Grade)
                .join(api.SubmittedNotebook, api.Grade.notebook_id == api.SubmittedNotebook.id)
                .join(api.SubmittedAssignment, api.SubmittedNotebook.assignment_id == api.SubmittedAssignment.id)
                .join(api.Assignment, api.SubmittedAssignment.assignment_id == api.Assignment.id)
                .join(api.GradeCell, api.Grade.cell_id == api.GradeCell.id)
                .all()
            )
        rows = [Row(student, lesson, test.removesuffix("-test"), *rest) for student, lesson, test, *rest in found]
        return [row for row in rows if row[:2] in here]

    def csv(self) -> str:
        """grades.csv: a row for each student and lesson, with a column for each exercise's points."""
        exercises: dict[tuple[str, str], list[tuple[str, float]]] = {}
        for (student, lesson, exercise), (score, _) in self.scores().items():
            exercises.setdefault((student, lesson), []).append((exercise, score))
        width = max(map(len, exercises.values()), default=0)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["student_id", "assignment", "score", "max_score", *(f"ex{n + 1}" for n in range(width))])
        for (student, lesson), (score, most) in sorted(self.totals().items()):
            points = [f"{value:g}" for _, value in sorted(exercises[student, lesson])]
            writer.writerow([_cell(student), lesson, f"{score:g}", f"{most:g}", *points])
        return text.getvalue()

    def table(self) -> str:
        """Students down, lessons across: points of points."""
        totals = self.totals()
        lessons = sorted({lesson for _, lesson in totals})
        students = sorted({student for student, _ in totals})
        rows = [["student", *lessons]]
        for student in students:
            cells = [totals.get((student, lesson)) for lesson in lessons]
            rows.append([student, *(f"{cell[0]:g}/{cell[1]:g}" if cell else "–" for cell in cells)])
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([lines[0], "  ".join("─" * width for width in widths), *lines[1:]])

    @functools.cached_property
    def settings(self):
        """What `nbgrader_config.py` says."""
        return nbgrader_api.settings()

    def _config(self, **coursedir: str):
        config = copy.deepcopy(self.settings)
        config.CourseDirectory.update(root=str(self.root), db_url=self._db_url())
        config.CourseDirectory.source_directory = os.path.relpath(self.solutions, self.root)
        if coursedir.get("root"):
            config.CourseDirectory.source_directory = "solutions"
        config.CourseDirectory.update(coursedir)
        if self.timeout:
            config.RunCells.update(timeout=self.timeout, test_timeout=2 * self.timeout)
        config.RunCells.jail = self.jail
        return config

    def _convert(self, converter: type, config) -> str:
        return nbgrader_api.convert(converter, config, self.root / ".nbgrader.log")

    def _record_failure(self, student: str, lesson: str) -> None:
        """No old score may stand for a submission that could not be graded."""
        from autograder.grading import restore, scoring

        with self.gradebook() as gradebook:
            gradebook.update_or_create_student(student)
            gradebook.update_or_create_submission(lesson, student)
            empty = restore.restore([], restore.source_cells(gradebook, lesson, lesson))
            tests = {cell.id: cell for cell in empty.cells}
            for cell in empty.cells:
                cell.metadata["autograder"] = {"status": "failed", "reason": scoring.FAILED}
            scoring.save(gradebook, lesson, lesson, student, tests)

    def _forget(self, gradebook, lesson: str) -> None:
        """Take a lesson out of the gradebook, because nbgrader cannot change the exercises of a graded one."""
        for submission in gradebook.find_assignment(lesson).submissions:
            for nb in submission.notebooks:
                grades = [grade for grade in nb.grades if grade.manual_score is not None or grade.extra_credit]
                if grades or any(comment.manual_comment for comment in nb.comments):
                    raise ValueError(
                        f"{lesson} has other exercises now, and {submission.student.id} has points or comments by hand "
                        "for the old ones: save them with `nbgrader export`, then "
                        f"`nbgrader db assignment remove {lesson} --force`"
                    )
        gradebook.remove_assignment(lesson)

    @contextlib.contextmanager
    def gradebook(self) -> Iterator:
        """nbgrader's gradebook of this course, which is made where there is none; to be used in a `with`."""
        from nbgrader.api import Gradebook

        with Gradebook(self._db_url(), self.settings.CourseDirectory.course_id) as gradebook:
            yield gradebook

    def _db_url(self) -> str:
        return f"sqlite:///{self.root / 'gradebook.db'}"

    def _read_graded(self) -> dict[str, str]:
        try:
            return dict(json.loads(self.graded.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}

    def _fingerprint(self, student: str, lesson: str) -> str:
        """A digest of all that a grade depends on: submission (of no student: none), lesson, grader."""
        digest = hashlib.sha256(f"{self.timeout} {self.jail}".encode())
        folders = [self.root / "submitted" / student / lesson] if student else []
        for folder in (*folders, self.solutions / lesson, notebook.ROOT / "autograder", notebook.ROOT / "ranks"):
            for path in sorted(folder.rglob("*")):
                plain = path.is_file() and not path.is_symlink() and path.name not in AFTERWARDS
                if plain and "__pycache__" not in path.parts:
                    digest.update(str(path.relative_to(folder)).encode() + b"\0" + _digest(path))
        digest.update(_digest(notebook.ROOT / nbgrader_api.CONFIG))
        return digest.hexdigest()


#: What only looks at grades: a change in it changes none.
AFTERWARDS = {"report.py", "report.html.j2", "charts.py", "lms.py", "marks.py", "mistakes.py", "regrade.py", "audit.py"}

BAR = "{percentage:3.0f}%|{bar:24}| {n_fmt}/{total_fmt} [{elapsed}, {remaining} left] {desc}"


class Row(NamedTuple):
    """One exercise of one submission."""

    student: str
    lesson: str
    exercise: str
    score: float
    max_score: float
    auto_score: float | None
    manual_score: float | None
    needs_manual_grade: bool
    penalty: float | None

    @property
    def waits(self) -> bool:
        """Is there no final score yet?"""
        return self.auto_score is None or self.needs_manual_grade


def _exactly_one(converter: type) -> type:
    """nbgrader's converter for one student and lesson, also when the notebook is missing."""

    class One(converter):
        def init_notebooks(self) -> None:
            lesson, student = self.coursedir.assignment_id, self.coursedir.student_id
            folder = self._format_source(lesson, student)
            self.assignments = {folder: [os.path.join(folder, f"{lesson}.ipynb")]}

        def start(self) -> None:
            """As nbgrader's; a time of submission that is none counts as none."""
            read = self.coursedir.get_existing_timestamp

            def timestamp(path: str):
                try:
                    return read(path)
                except Exception:
                    return None

            self.coursedir.get_existing_timestamp = timestamp
            super().start()

        def init_assignment(self, assignment_id: str, student_id: str) -> None:
            """As nbgrader's, but nothing is copied beside the notebook: links could lead anywhere."""
            ignored = self.coursedir.ignore
            self.coursedir.ignore = [*ignored, "*"]
            try:
                super().init_assignment(assignment_id, student_id)
            finally:
                self.coursedir.ignore = ignored

    return One


def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


def _cell(text: str) -> str:
    """A name that no spreadsheet takes for a formula."""
    return f"'{text}" if text[:1] in "=+-@\t\r" else text
