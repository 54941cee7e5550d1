"""A class, and how it is graded.

A course is a folder with `submitted/STUDENT/LESSON/LESSON.ipynb`, and `course.toml` if it has settings of its own
(`course_settings`). Grading it fills `record.json`, `gradebook.db`, `autograded/`, `feedback/` and `grades.csv` next to
it, through nbgrader with the settings of `nbgrader_config.py`. What did not change since it was graded is not graded
again.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import os
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
from tqdm import tqdm

from autograder.grade import handed_in, isolation, limits, outcome
from autograder.grade import record as records
from autograder.grade.nbgrader import library, lock
from autograder.grade.nbgrader.gradebook import Row, csv_of, rows_of, scores_of, totals_of
from autograder.lesson import adapted, course_settings, keys, pieces
from autograder.lesson.files import write_whole

if TYPE_CHECKING:
    from traitlets.config import Config

    from autograder.grade.nbgrader.submission_files import Submission
    from autograder.grade.record import Record
    from autograder.grade.running.workers import Task, Workers
    from autograder.lesson.course_settings import Settings


#: Said of a submission that is not remembered as graded, and of the same one when `grade` has tried it once more.
RETRY_LATER = (
    "it met a limit of time, also when it was tried alone, while other programs had the processors; the next `grade` "
    "tries it once more"
)
NOT_RETRIED = (
    "it met a limit of time again, while other programs had the processors; this result stays until the notebook "
    "changes, or until you run `autograder grade {1} --student {0} --force` on a quieter machine"
)
#: Stands before the fingerprint of such a submission that has been tried in one `grade`.
ONCE = "once "

#: Bytes: the system takes 107 for the name of a socket, and below this folder they have about 35.
LONGEST_TMPDIR = 70


class UnknownStudentError(ValueError):
    """A student who has handed in nothing."""


class Course:
    """One class: a folder with `submitted/`, and what grading writes next to it.

    Lessons come from `solutions/` in that folder if it exists, else from the repository. timeout: seconds for a cell; a
    test cell gets twice as long. jail: run the submissions in a jail. only: the students whose submissions are graded;
    if empty, all. UnknownStudentError for one who has no folder.
    """

    def __init__(self, root: Path, timeout: int | None = None, jail: bool = True, only: Collection[str] = ()):
        self.root = Path(root).resolve()  # nbgrader compares paths as text
        self.solutions = course_settings.solutions_of(self.root)
        self.timeout, self.jail, self.only = timeout, jail, only
        for student in only:
            if not (self.root / "submitted" / student).is_dir():
                near = course_settings.did_you_mean(student, self.students()) or ": check the name after --student"
                raise UnknownStudentError(f"there is no folder submitted/{student}{near}")
        #: Of each submission that is being graded the exchange's own files, and its fingerprint.
        self._being_graded: dict[tuple[str, str], tuple[dict[str, bytes], str]] = {}

    @property
    def own(self) -> Settings:
        """The course's own settings, as `course.toml` has them now."""
        return course_settings.of(self.root)

    def lessons(self) -> list[str]:
        """The lessons that can be graded here."""
        return self.own.names()

    def students(self) -> list[str]:
        """The students who have a folder in `submitted/`."""
        return sorted(path.name for path in (self.root / "submitted").glob("[!.]*") if path.is_dir())

    def whole_names(self, lessons: list[str]) -> list[str]:
        """The lessons that these names or beginnings of names mean; UnknownLessonError for one that is none here."""
        return self.own.pick(lessons) if lessons else []

    def jobs(self, lessons: list[str] | None = None) -> list[tuple[str, str]]:
        """(student, lesson) of everything handed in."""
        wanted = lessons or self.lessons()
        return sorted(job for job in handed_in.folders(self.root) if job[1] in wanted and not job[0].startswith("."))

    def _gradable(self, lessons: list[str] | None) -> list[tuple[str, str]]:
        """The submissions that are graded: those that nbgrader can take for what they are."""
        wanted = (job for job in self.jobs(lessons) if not self.only or job[0] in self.only)
        return [job for job in wanted if limits.is_students_name(job[0])]

    def misplaced_files(self) -> list[str]:
        """Files below `submitted/` that could be somebody's work and are graded nowhere."""
        return handed_in.misplaced_files(self.root, self.lessons())

    def grade(
        self,
        lessons: list[str] | None = None,
        force: bool = False,
        jobs: int | None = None,
        scheduler: str = "",
        solutions: bool = True,
    ) -> list[str]:
        """Grade what changed, write feedback and grades.csv. One line for each submission that could not be graded.

        jobs, scheduler: as for `workers.Workers`; without a number, one worker per core. solutions: grade each lesson's
        own solution first.
        """
        from autograder.grade.running import workers

        _check_tmpdir()
        if self.jail and not scheduler and (force or self._has_newer(lessons)):
            workers.begin_to_import()
        self._check_setup()
        with lock.held(self.root, "autograder grade"), library.one_engine():
            library.write_settings(self.root, os.path.relpath(self.solutions, self.root))
            hidden, every = not self._gradable(lessons), 0.1 if sys.stderr.isatty() else 10.0  # a log needs few lines
            with tqdm(
                total=1, desc="preparing", unit="notebook", disable=hidden, mininterval=every, leave=False
            ) as bar:
                problems = self._grade_what_changed(lessons, force, jobs or workers.cores(), scheduler, solutions, bar)
                problems += self._follow_gradebook(bar)
            for problem in problems:
                print(limits.printable(problem), file=sys.stderr)
            write_whole(self.root / "grades.csv", csv_of(self.rows()))
        return problems

    def _follow_gradebook(self, bar: tqdm) -> list[str]:
        """Bring penalties and pages up to date with what people have entered; what went wrong, in at most one line."""
        from autograder.grade.nbgrader.grade_submission import follow_gradebook

        if not self.has_gradebook():
            return []
        with library.logged(self.root / ".nbgrader.log") as log:
            if rewritten := follow_gradebook(self._config()):
                bar.write(f"brought up to date with the gradebook: {len(rewritten)} feedback page(s)", file=sys.stderr)
        return [f"feedback pages may be older than the gradebook: {log.problem}"] if log.problem else []

    def _grade_what_changed(
        self, lessons: list[str] | None, force: bool, jobs: int, scheduler: str, solutions: bool, bar: tqdm
    ) -> list[str]:
        """What `grade` does while the bar moves."""
        from autograder.grade.running import workers

        gradable = sorted({lesson for _, lesson in self._gradable(lessons)})
        if gradable or self.has_gradebook():
            with self.writing():
                pass
        for lesson in gradable:
            bar.set_description_str(f"preparing {lesson}")
            self.prepare(lesson)
        record, final = records.of(self.root), self.final()
        todo = [
            job for job in self._gradable(lessons)
            if force or job not in final
            or record.at(job[1]).graded.get(job[0]) != self._fingerprint(*job, self._submission(*job))
        ]  # fmt: skip
        needed = self._untried(sorted({lesson for _, lesson in todo})) if solutions else {}
        if todo:
            bar.reset(len(todo) + len(needed))
        with workers.Workers(
            len(todo) + len(needed), jobs, scheduler, isolation.kernels(self.jail and bool(todo))
        ) as pool:
            tasks = pool.prepared(self.task(*job) for job in todo)
            self.try_solutions(needed, pool, bar)
            problems = self._grade(todo, tasks, pool, bar)
        bar.leave = bool(todo)  # neither where nothing had changed nor where an error is the last line
        return problems

    def _check_setup(self) -> None:
        """Warn of what is not graded and of a missing jail. ValueError if the jail is wanted and cannot be used."""
        handed_in.use_usual_accents(self.root)
        lines = (*handed_in.problems(self.root, self.lessons()), *self._unknown_students())
        for line in (*lines, *handed_in.gone(self.root, self.lessons(), self.jobs())):
            print(limits.printable(line), file=sys.stderr)
        if not self.jail:
            print("Without a jail, submissions run with your rights and can fake passing tests.", file=sys.stderr)
        else:
            isolation.refuse(self.root, self.solutions)

    def _unknown_students(self) -> Iterator[str]:
        """A line for each extension of somebody who has handed in nothing and is not in the gradebook."""
        known = set(self.students())
        if others := {student for student, _ in self.own.extensions} - known:
            known |= self.record().students.keys()
        for student in sorted(others - known):
            near = course_settings.did_you_mean(student, known)
            yield limits.printable(f"{course_settings.FILE}: extensions: no work of a student {student!r} yet{near}")

    def _has_newer(self, lessons: list[str] | None) -> bool:
        """Has a notebook been put there since the last grading? A quick guess by the time that no copy keeps."""
        table = self.root / "grades.csv"
        last = table.stat().st_mtime if table.is_file() else 0.0
        for student, lesson in self._gradable(lessons):
            with contextlib.suppress(OSError):  # there is none, or it cannot be read: grading says so
                if (self.root / "submitted" / student / lesson / f"{lesson}.ipynb").stat().st_ctime > last:
                    return True
        return False

    def _grade(self, todo: list[tuple[str, str]], tasks: Iterable[Task], pool: Workers, bar: tqdm) -> list[str]:
        """Let workers run these submissions, (student, lesson), and write each one's grade as soon as it is known.

        tasks: one for each.
        """
        problems = []
        if todo:
            bar.set_description_str("grading")
        for task, executed, error in pool.run(tasks):
            student, lesson = task.name
            bar.set_description_str(f"graded {student} {lesson}")
            # Until it is written, it is not graded, whatever was remembered of it.
            before = records.of(self.root).at(lesson).graded.pop(student, None)
            fingerprint = self._being_graded[task.name][1]
            problem = self.write_grade(student, lesson, executed, error)
            if problem:
                problems.append(problem)
            else:
                state = fingerprint
                if executed is not None and _decided_by_others(executed):
                    again = before is not None and before.removeprefix(ONCE) == fingerprint
                    why = NOT_RETRIED.format(student, lesson) if again else RETRY_LATER
                    bar.write(limits.printable(f"{student} {lesson}: {why}"), file=sys.stderr)
                    state = fingerprint if again else ONCE + fingerprint
                # Saved with the next grade: if that is not written any more, this one is only graded once more.
                records.of(self.root).at(lesson).graded[student] = state
            bar.update()
        records.save(self.root, records.of(self.root))
        return problems

    def forget(self, jobs: Iterable[tuple[str, str]]) -> None:
        """Let the next `grade` grade these submissions again, (student, lesson), although they have not changed."""
        with lock.held(self.root, "autograder grade"):
            for student, lesson in jobs:
                records.of(self.root).at(lesson).graded.pop(student, None)
            records.save(self.root, records.of(self.root))

    def task(self, student: str, lesson: str) -> Task:
        """What a worker needs to run one submission; without a student (''), the solution itself.

        What is used of the submission's folder is read here, once: it may change meanwhile.
        """
        from autograder.grade.nbgrader import preprocessors, reading, restore, submission_files
        from autograder.grade.running import workers

        run, source = preprocessors.RunCells(config=self._config()), self.solutions / lesson
        instructor = submission_files.lesson_notebook(source / f"{lesson}.ipynb", self.own)
        files, nb = pieces.companions(source), reading.notebook_of(instructor.cells, outcome.NotebookOutcome())
        if student:
            submission = self._submission(student, lesson)
            self._being_graded[student, lesson] = submission.exchange, self._fingerprint(student, lesson, submission)
            nb, files = reading.notebook_in(submission), submission_files.next_to(files, submission.files)
        with self.gradebook() as gradebook:
            earlier = records.of(self.root).at(lesson).earlier
            sources = restore.source_cells(gradebook, lesson, lesson, earlier)
        restored = restore.restored_notebook(nb, sources, instructor)
        return workers.Task((student, lesson), restored, instructor, run.kernels, files, run.limits, run.demonstrations)

    def prepare(self, lesson: str) -> None:
        """Bring the gradebook's version of a lesson up to date with its solution.

        Where its exercises have changed, nbgrader must forget the lesson: what people have entered is in the record.
        """
        from autograder.grade.nbgrader import restore

        source, own = self.solutions / lesson, self.own
        state = hashlib.sha256((source / f"{lesson}.ipynb").read_bytes() + own.marks(lesson).encode()).hexdigest()
        if records.of(self.root).at(lesson).state == state:
            return
        with self.writing() as (record, gradebook):
            if (known := record.at(lesson)).state:
                restore.add_earlier(known.earlier, restore.source_cells(gradebook, lesson, lesson))
        problem = self._store(lesson)
        # If the grader ends between the two, the next one finds everything in the record.
        if "Cannot add or remove cells" in problem:
            with self.writing() as (_, gradebook):
                gradebook.remove_assignment(lesson)
            problem = self._store(lesson)
        if problem:
            raise ValueError(f"nbgrader refuses {source.relative_to(self.solutions.parent)}: {problem}")
        with self.writing() as (record, _):
            record.at(lesson).state = state
        if homeless := records.of(self.root).homeless(lesson):
            print(limits.printable(homeless), file=sys.stderr)

    def _store(self, lesson: str) -> str:
        """Let nbgrader store a lesson in the gradebook; '' or what it says against that."""
        with tempfile.TemporaryDirectory(prefix="lesson-") as folder:
            # In a scratch folder: only `make notebooks` writes released notebooks.
            scratch = Path(folder).resolve()
            (scratch / "solutions" / lesson).mkdir(parents=True)
            adapted.copy(self.solutions, scratch / "solutions", lesson, self.own)
            config = self._config(assignment_id=lesson, root=str(scratch))
            return library.generate_assignment(config, self.root / ".nbgrader.log")

    def _untried(self, lessons: list[str]) -> dict[str, str]:
        """The lessons whose solutions have to be graded, because the lesson or the grader has changed → fingerprint."""
        record, states = records.of(self.root), {lesson: self._fingerprint("", lesson) for lesson in lessons}
        return {lesson: state for lesson, state in states.items() if record.at(lesson).tried != state}

    def try_solutions(self, states: dict[str, str], pool: Workers, bar: tqdm) -> None:
        """Grade the solutions of these lessons themselves. states: lesson → fingerprint.

        ValueError if one loses a mark: then the tests or the installation are broken, and students must not pay for it.
        """
        from autograder.grade.nbgrader import scoring
        from autograder.grade.running import run_cells

        if states:
            bar.set_description_str(f"the lesson's own solution of {', '.join(states)}")
        for task, executed, error in pool.run([self.task("", lesson) for lesson in states]):
            lesson = task.name[1]
            if executed is None:
                raise ValueError(f"nothing was graded: the solution of {lesson} cannot be run here: {error}")
            for test in filter(run_cells.is_test, executed.cells):
                if not (found := outcome.of_metadata(test)).passed:
                    why = scoring.comment(found).split("\n")[0]
                    text = f"nothing was graded: the solution of {lesson} fails its own {test.id} here: {why}"
                    raise ValueError(text)
            records.of(self.root).at(lesson).tried = states[lesson]
            records.save(self.root, records.of(self.root))
            bar.update()

    def grade_one(self, student: str, lesson: str) -> str:
        """Grade one submission; '' or, in one line, why that was not possible."""
        from autograder.grade.running import workers

        with workers.Workers(1, kernels=isolation.kernels(self.jail)) as pool:
            _, executed, error = next(iter(pool.run([self.task(student, lesson)])))
        return self.write_grade(student, lesson, executed, error)

    @classmethod
    def grade_for_nbgrader(cls, config: Config, root: Path, student: str, lesson: str) -> str:
        """`grade_one` where nbgrader's command or formgrader asks for it, with nbgrader's configuration.

        ValueError if the jail is wanted and cannot be used.
        """
        from autograder.grade.nbgrader import preprocessors

        course = cls(root, jail=preprocessors.RunCells(config=config).jail)
        course.settings = config
        if course.jail:
            isolation.refuse(course.root, course.solutions)
        # What fails now is not final, whatever was remembered of it. Saved with the grade, or with why there is none.
        records.of(course.root).at(lesson).graded.pop(student, None)
        return course.grade_one(student, lesson)

    def write_grade(
        self, student: str, lesson: str, executed: nbformat.NotebookNode | None, error: Exception | None = None
    ) -> str:
        """Write what a worker found into the record and the feedback, with nbgrader; '' or what went wrong.

        Nothing of the submission runs in this process.
        """
        from autograder.grade.nbgrader import scoring
        from autograder.grade.nbgrader.grade_submission import grade_submission, record_failure

        problem = f"{type(error).__name__}: {error}".split("\n")[0] if error else ""
        if executed is not None:
            config = self._config(assignment_id=lesson, student_id=student)
            with library.logged(self.root / ".nbgrader.log") as log:
                grade_submission(config, student, lesson, executed, self._being_graded.pop((student, lesson))[0])
            problem = log.problem
        if problem:
            why = scoring.ENDED if isinstance(error, BrokenProcessPool) else scoring.FAILED
            record_failure(self._config(assignment_id=lesson, student_id=student), student, lesson, why)
            return f"{student} {lesson}: not graded, 0 points for now: {problem} (more in .nbgrader.log)"
        return ""

    def final(self) -> set[tuple[str, str]]:
        """(student, lesson) of everything whose tests have all been run for a score, and that has a feedback page."""
        rows = self.rows()
        found = {row[:2] for row in rows} - {row[:2] for row in rows if row.auto_score is None and not row.question}
        return {
            (student, lesson)
            for student, lesson in found
            if (self.root / "feedback" / student / lesson / f"{lesson}.html").is_file()
        }

    def scores(self) -> dict[tuple[str, str, str], tuple[float, float]]:
        """(student, lesson, exercise) → (score, most), for the submissions that are in `submitted/` now."""
        return scores_of(self.rows())

    def totals(self) -> dict[tuple[str, str], tuple[float, float]]:
        """(student, lesson) → (score, most), late penalties taken off."""
        return totals_of(self.rows())

    def rows(self) -> list[Row]:
        """Every grade, for the submissions that are in `submitted/` now."""
        present = set(self.jobs())
        return [row for row in rows_of(self.record()) if row[:2] in present]

    def record(self) -> Record:
        """The record of the class, with all that people have entered until now, to be read."""
        from autograder.grade.nbgrader import view

        found = records.read(self.root)
        if self.has_gradebook():
            with self.gradebook() as gradebook:
                view.read_back(found, gradebook)
        return found

    def writing(self) -> AbstractContextManager[tuple[Record, library.Gradebook]]:
        """The record, to be changed, and nbgrader's gradebook, which shows it at the end."""
        from autograder.grade.nbgrader import view

        return view.writing(library.directory(self._config()))

    def has_gradebook(self) -> bool:
        """Is there a gradebook yet? `gradebook` would make one."""
        return (self.root / "gradebook.db").is_file()

    @functools.cached_property
    def settings(self) -> Config:
        """What `nbgrader_config.py` says."""
        return library.settings()

    def _config(self, **coursedir: str) -> Config:
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

    def gradebook(self) -> library.Gradebook:
        """nbgrader's gradebook of this course, made if there is none; to be used in a `with`."""
        return library.gradebook(self._db_url(), self.settings.CourseDirectory.course_id)

    def _db_url(self) -> str:
        if "?" in str(self.root):  # to SQLAlchemy, the name of the file would end there
            raise ValueError(f"the folder {self.root} has a question mark in its name: rename it")
        return f"sqlite:///{self.root / 'gradebook.db'}"

    def _submission(self, student: str, lesson: str) -> Submission:
        """What is used of a submission, as it is now."""
        from autograder.grade.nbgrader import preprocessors, submission_files

        patterns = preprocessors.RunCells(config=self._config()).data_files
        return submission_files.read_folder(self.root / "submitted" / student / lesson, patterns)

    def _fingerprint(self, student: str, lesson: str, submission: Submission | None = None) -> str:
        """A digest of all that a grade depends on: the submission (none for student ''), the lesson, the grader."""
        digest = submission.digest() if submission else ""
        key = keys.lesson_key(lesson, self.solutions, keys.GRADING) + self.own.marks(lesson)
        parts = (self.timeout, self.jail, key, digest)
        return hashlib.sha256(" ".join(map(str, parts)).encode()).hexdigest()


def _check_tmpdir() -> None:
    """ValueError if the name of the folder for temporary files is too long, before anything makes a socket below it."""
    if (length := len(os.fsencode(tempfile.gettempdir()))) > LONGEST_TMPDIR:
        why = "too many for the sockets below it: set TMPDIR to a shorter one, such as /tmp"
        raise ValueError(f"the folder for temporary files has a name of {length} bytes, {why}")


def _decided_by_others(executed: nbformat.NotebookNode) -> bool:
    """Did a test fail by a limit of time while other programs had the processors for most of the time?"""
    return outcome.of_notebook(executed).busy and outcome.failed_by_time(map(outcome.of_metadata, executed.cells))
