"""A made-up class through one assignment, as an instructor takes it: is anything lost, and how long does it take?

    .venv/bin/python benchmarks/term.py [--students 120] [--lesson 03] [--seed 1] [--jobs 2]

Every student hands in right answers, other right answers, known mistakes or half of it, drawn by the seed, in one of
ten kinds of files. They come as Moodle's zip. Then: `import`; `grade`, killed three times on the way; points and
comments by hand, a due date and extensions; other notebooks from some, also from graded by hand; `grade`; a test whose
text changes; `regrade`; an exercise that is dropped and comes back, with a kill while nbgrader has forgotten the
lesson; a gradebook that is deleted; the exports. After each step all scores are compared with the expected ones, and
the record with what nbgrader says of its gradebook. Prints seconds and the memory of the largest process of each step,
and everything that differs; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import datetime
import io
import os
import random
import runpy
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from nbformat.v4 import new_output

from autograder.answers import right, wrong
from autograder.grade import course, example_class
from autograder.grade import record as records
from autograder.grade.course import Course
from autograder.grade.nbgrader import library
from autograder.lesson import notebook

MAKE = runpy.run_path(str(example_class.EXAMPLE / "make.py"))
DUE = datetime.datetime(2026, 10, 1, 12)
BY_HAND, EXTENDED, AGAIN = 12, 5, 10
REMARK = "Read: ★ well argued"


def _plain(nb: nbformat.NotebookNode) -> bytes:
    return nbformat.writes(nb, version=nbformat.NO_CONVERT).encode()


def _without_marks(nb: nbformat.NotebookNode) -> bytes:
    for cell in nb.cells:
        cell.metadata.pop("nbgrader", None)
    return _plain(nb)


def _with_outputs(nb: nbformat.NotebookNode) -> bytes:
    for cell in nb.cells:
        if cell.cell_type == "code":
            cell.outputs = [new_output("stream", name="stdout", text="step 1, loss 0.5\n" * 5_000)]
    return _plain(nb)


def _with_a_drive(nb: nbformat.NotebookNode) -> bytes:
    next(
        cell for cell in nb.cells if cell.cell_type == "code"
    ).source = "from google.colab import drive\n\ndrive.mount('/content/drive')"
    return _plain(nb)


#: Kind of file → (path below the student's folder, bytes of a notebook). What nobody can read comes last.
KINDS: dict[str, tuple[str, Callable[[nbformat.NotebookNode], bytes]]] = {
    "as it should be": ("{lesson}.ipynb", _plain),
    "byte order mark": ("{lesson}.ipynb", lambda nb: b"\xef\xbb\xbf" + _plain(nb)),
    "UTF-16": ("{lesson}.ipynb", lambda nb: _plain(nb).decode().encode("utf-16")),
    "downloaded twice": ("{lesson} (1).ipynb", _plain),
    "renamed": ("my final solution.ipynb", _plain),
    "a folder too deep": ("homework/{lesson}.ipynb", _plain),
    "without nbgrader's metadata": ("{lesson}.ipynb", _without_marks),
    "large outputs": ("{lesson}.ipynb", _with_outputs),
    "Colab's drive in the setup cell": ("{lesson}.ipynb", _with_a_drive),
    "cut off": ("{lesson}.ipynb", lambda nb: _plain(nb)[: len(_plain(nb)) // 2]),
}
UNREADABLE = "cut off"


@dataclass
class Student:
    """One student: the kind of file, the points expected for each exercise, and those that a person has given."""

    number: int
    kind: str
    expected: dict[str, float] = field(default_factory=dict)
    by_hand: set[str] = field(default_factory=set)

    @property
    def login(self) -> str:
        """What the course calls the student."""
        return f"s{self.number:03d}"

    @property
    def name(self) -> str:
        """What Moodle calls the student."""
        return f"Zoë Ñandú{self.number}"


def points_of(paper: Any) -> dict[str, float]:
    """Exercise → the points that a notebook should have."""
    return {test.id.removesuffix("-test"): paper.points(test) for test in paper.tests}


@dataclass
class Term:
    """The course, its class, and what has gone wrong so far. draw: decides who does what."""

    root: Path
    lesson: str
    students: list[Student]
    draw: random.Random
    jobs: int
    wrong: list[str] = field(default_factory=list)

    def run(self, *command: str, kill_when: Callable[[], bool] | None = None) -> str:
        """One command of the grader; stdout and stderr. kill_when: kill it as soon as this is so."""
        whole = [sys.executable, "-m", "autograder", *command, "--course", str(self.root)]
        with open(self.root.parent / "said.txt", "w+", encoding="utf-8") as said:
            started = time.perf_counter()
            process = subprocess.Popen(whole, stdout=said, stderr=said, start_new_session=True)
            ended = threading.Event()
            if kill_when is not None:
                threading.Thread(target=self.kill, args=(process.pid, kill_when, ended), daemon=True).start()
            _, status, used = os.wait4(process.pid, 0)
            ended.set()
            code, seconds = os.waitstatus_to_exitcode(status), time.perf_counter() - started
            said.seek(0)
            text = said.read()
        peak = used.ru_maxrss / 2**10
        end = " (killed)" if code == -signal.SIGKILL else ""
        print(f"{' '.join(command[:1]):14}{seconds:8.1f} s{peak:8.0f} MiB{end}", flush=True)
        if kill_when is not None and not end:
            self.wrong.append(f"{command[0]} ended before it could be killed")
        if "Traceback" in text or code not in (0, 1, -signal.SIGKILL):
            self.wrong.append(f"{command[0]} ended with {code}: {text.strip().splitlines()[-1:]}")
        return text

    def kill(self, pid: int, when: Callable[[], bool], ended: threading.Event) -> None:
        """Kill a command, with everything that it has started, as soon as `when` says so."""
        while not when() and not ended.is_set():
            time.sleep(0.01)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)

    def is_forgotten(self) -> bool:
        """Does nbgrader's gradebook not have the lesson, since its exercises change?"""
        with contextlib.closing(sqlite3.connect(self.root / "gradebook.db", timeout=30)) as database:
            return not database.execute("SELECT 1 FROM notebook WHERE name = ?", [self.lesson]).fetchone()

    def grade(self) -> str:
        """`grade`, and once more if the machine was too busy for a submission, as the grader asks for."""
        text = self.run("grade", self.lesson, "--jobs", str(self.jobs))
        return text + self.run("grade", self.lesson, "--jobs", str(self.jobs)) if course.RETRY_LATER in text else text

    def graded(self) -> int:
        """How many notebooks are graded."""
        return len(list(self.root.glob(f"autograded/*/{self.lesson}/{self.lesson}.ipynb")))

    def compare(self, after: str, without: str = "") -> None:
        """Say which scores are not the expected ones, and who is missing in grades.csv. without: this exercise."""
        rows = {(row.student, row.exercise.removesuffix("-test")): row.score for row in Course(self.root).rows()}
        for student in self.students:
            for exercise, points in student.expected.items():
                if exercise == without:
                    continue
                score = rows.get((student.login, exercise), 0.0 if student.kind == UNREADABLE else None)
                if score is None or abs(score - points) > 1e-9:
                    self.wrong.append(f"{after}: {student.login} ({student.kind}) {exercise}: {score}, not {points:g}")
        self.wrong += [f"{after}: {line}" for line in self.differences()]

    def differences(self) -> list[str]:
        """Where the record says something else than nbgrader does, and what conflicts it has."""
        record, lines = records.read(self.root), list[str]()
        with Course(self.root).gradebook() as gradebook:
            lesson = record.lessons[self.lesson]
            there: dict[Any, Any] = {"due": gradebook.find_assignment(self.lesson).duedate}
            ours: dict[Any, Any] = {"due": lesson.due and datetime.datetime.fromisoformat(lesson.due)}
            for submission in gradebook.assignment_submissions(self.lesson):
                there[submission.student.id] = submission.extension
                for grade in submission.notebooks[0].grades:
                    points = grade.auto_score, grade.manual_score, grade.extra_credit, grade.needs_manual_grade
                    there[submission.student.id, grade.name.removesuffix("-test")] = *points, grade.score
                for comment in submission.notebooks[0].comments:
                    there[submission.student.id, comment.name, "said"] = comment.auto_comment, comment.manual_comment
        for login, one in lesson.submissions.items():
            ours[login] = None if one.extension is None else datetime.timedelta(seconds=one.extension)
            for name, entry in one.entries.items():
                if name in lesson.most:
                    ours[login, name] = entry.auto, entry.manual, entry.extra, entry.to_grade, entry.score
                    ours[login, name, "said"] = entry.comment, entry.remark
        lines += [f"{key}: {ours.get(key)} in the record, {there.get(key)} in the gradebook"
                  for key in ours.keys() | there.keys() if ours.get(key) != there.get(key)]  # fmt: skip
        return lines + record.conflicts

    def paper(self) -> Any:
        """A released notebook with answers drawn by the seed."""
        paper = self.blank()
        what = self.draw.choice(["right", "another", "mistake", "mistake", "half"])
        if what == "half":
            MAKE["half_done"](*paper.answers[: len(paper.answers) // 2])(paper)
            return paper
        paper.write(*paper.answers)
        if what == "another" and (others := right.load_right(self.lesson)):
            answer = self.draw.choice(others)
            paper.put(answer.cell, answer.source)
        elif what == "mistake":
            paper.mistake(self.draw.choice(wrong.load_wrong(self.lesson)).name)
        return paper

    def blank(self) -> Any:
        """The released notebook."""
        path = notebook.NOTEBOOKS / self.lesson / f"{self.lesson}.ipynb"
        return MAKE["Paper"](self.lesson, nbformat.read(path, as_version=4), notebook.read(self.lesson))

    def deliver(self) -> tuple[Path, Path]:
        """Moodle's zip, and the table of names and logins."""
        download, table = self.root.parent / "moodle.zip", self.root.parent / "names.csv"
        with zipfile.ZipFile(download, "w", zipfile.ZIP_DEFLATED) as archive:
            for student in self.students:
                paper, (path, write) = self.paper(), KINDS[student.kind]
                student.expected = points_of(paper)
                if student.kind == UNREADABLE:
                    student.expected = dict.fromkeys(student.expected, 0.0)
                folder = f"{student.name}_{student.number}_assignsubmission_file_"
                info = zipfile.ZipInfo(f"{folder}/{path.format(lesson=self.lesson)}", (2026, 9, 30, 10, 0, 0))
                archive.writestr(info, write(paper.nb))
        with open(table, "w", encoding="utf-8-sig", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["First name", "Last name", "Username", "Email address"])
            for student in self.students:
                first, last = student.name.split()
                writer.writerow([first, last, student.login, f"{student.login}@example.org"])
        return download, table

    def enter(self, students: list[Student]) -> None:
        """Half a point more by hand for one exercise of each, with a remark; a due date, and extensions for some."""
        with Course(self.root).gradebook() as gradebook:
            for student in students:
                exercise = self.draw.choice(sorted(student.expected))
                student.expected[exercise] += 0.5
                student.by_hand.add(exercise)
                found = gradebook.find_grade(f"{exercise}-test", self.lesson, self.lesson, student.login)
                found.manual_score, found.needs_manual_grade = student.expected[exercise], False
                comment = gradebook.find_comment(exercise, self.lesson, self.lesson, student.login)
                comment.manual_comment = REMARK
            gradebook.update_or_create_assignment(self.lesson, duedate=DUE)
            for student in students[:EXTENDED]:
                gradebook.grant_extension(self.lesson, student.login, days=3)
            gradebook.db.commit()

    def kept(self, students: list[Student], after: str) -> None:
        """Say whose remark is not on the page, and which dates are gone."""
        for student in students:
            page = self.root / "feedback" / student.login / self.lesson / f"{self.lesson}.html"
            if REMARK not in page.read_text(encoding="utf-8"):
                self.wrong.append(f"{after}: the remark for {student.login} is not on the page")
        with Course(self.root).gradebook() as gradebook:
            if gradebook.find_assignment(self.lesson).duedate != DUE:
                self.wrong.append(f"{after}: the due date is gone")
            for student in students[:EXTENDED]:
                if gradebook.find_submission(self.lesson, student.login).extension != datetime.timedelta(days=3):
                    self.wrong.append(f"{after}: the extension of {student.login} is gone")

    def hand_in_again(self, students: list[Student]) -> None:
        """All right now; a score by hand stays."""
        paper = self.blank()
        MAKE["all_right"](paper)
        for student in students:
            path = self.root / "submitted" / student.login / self.lesson / f"{self.lesson}.ipynb"
            path.write_bytes(_plain(paper.nb))
            kept = {exercise: student.expected[exercise] for exercise in student.by_hand}
            student.kind, student.expected = "as it should be", points_of(paper) | kept

    def change_a_test(self) -> None:
        """One sentence more in a test cell, as upstream or an instructor changes it."""
        path = self.root / "solutions" / self.lesson / f"{self.lesson}.ipynb"
        nb = nbformat.read(path, as_version=4)
        test = next(cell for cell in nb.cells if notebook.nbgrader_role(cell) == "grade")
        test.source += "\n# A test of one case; the hidden ones try more."
        nbformat.write(nb, path)

    def change_exercises(self, students: list[Student]) -> None:
        """An exercise with points by hand is dropped, with a kill in between, and comes back; the gradebook is lost."""
        dropped = min(students[0].by_hand)
        settings = self.root / "course.toml"
        settings.write_text(f"[lessons.{self.lesson[:2]}]\ngiven = ['{'-'.join(dropped.split('-')[:2])}']\n")
        self.run("grade", self.lesson, "--jobs", str(self.jobs), kill_when=self.is_forgotten)
        concerned = ", ".join(sorted(student.login for student in students if dropped in student.by_hand))
        if f"the points and comments by hand of {concerned} for that" not in self.grade():
            self.wrong.append(f"{dropped} was dropped, and nothing is said of the points by hand of {concerned}")
        self.compare("an exercise dropped", without=dropped)
        settings.unlink()
        self.grade()
        self.compare("the exercise is back")
        self.kept(students, "the exercise is back")
        (self.root / "gradebook.db").unlink()
        self.grade()
        self.compare("the gradebook was deleted")
        self.kept(students, "the gradebook was deleted")


def go(term: Term) -> None:
    """The whole way; what went wrong is in `term.wrong`."""
    download, table = term.deliver()
    said = term.run("import", str(download), term.lesson, "--names", str(table))
    for student in term.students:
        if not (term.root / "submitted" / student.login).is_dir():
            term.wrong.append(f"import: nothing of {student.login} ({student.kind}): {said[-300:]}")
    readable = [student for student in term.students if student.kind != UNREADABLE]
    for part in (4, 2, 4 / 3):
        most = int(len(readable) / part)
        term.run("grade", term.lesson, "--jobs", str(term.jobs), kill_when=lambda most=most: term.graded() >= most)
    said = term.grade()
    term.wrong += [
        f"grade: {one.login} ({one.kind}) is not named"
        for one in term.students
        if one.kind == UNREADABLE and one.login not in said
    ]
    term.compare("grade, killed three times")
    if term.wrong:
        return
    by_hand = term.draw.sample(readable, min(BY_HAND, len(readable) // 3))
    again = by_hand[: len(by_hand) // 3] + [one for one in term.students if one not in by_hand][: AGAIN - 3]
    term.enter(by_hand)
    term.grade()
    term.compare("points by hand")
    term.kept(by_hand, "points by hand")
    term.hand_in_again(again)
    term.grade()
    term.compare("handed in again")
    term.kept(by_hand, "handed in again")
    term.change_a_test()
    term.run("regrade", term.lesson, "--jobs", str(term.jobs))
    term.compare("regrade")
    term.kept(by_hand, "regrade")
    term.change_exercises(by_hand)
    names = ["canvas.csv", "moodle.csv"]
    term.run("report", *(f"--{name.split('.')[0]}={term.root / name}" for name in names))
    zipped = term.root / "feedback.zip"
    term.run("feedback-zip", term.lesson, str(zipped))
    exports = {name: (term.root / name).read_text(encoding="utf-8-sig") for name in [*names, "grades.csv"]}
    for student in term.students:
        term.wrong += [
            f"{name}: {student.login} is missing" for name, text in exports.items() if student.login not in text
        ]
        total = sum(student.expected.values())
        line = next(
            (row for row in csv.DictReader(io.StringIO(exports["grades.csv"])) if row["student_id"] == student.login),
            None,
        )
        if line is not None and abs(float(line["score"]) - total) > 1e-6:
            term.wrong.append(f"grades.csv: {student.login} has {line['score']}, not {total:g}")
    with zipfile.ZipFile(zipped) as archive:
        if len([name for name in archive.namelist() if name.endswith(".html")]) < len(readable):
            term.wrong.append(f"feedback-zip: {len(archive.namelist())} pages for {len(readable)} readable notebooks")


def main() -> int:
    """Make the class and take it through; 1 if anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--students", type=int, default=120)
    parser.add_argument("--lesson", default="03")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    lesson = notebook.pick([arguments.lesson])[0]
    kinds = list(KINDS)
    students = [Student(number, kinds[number % len(kinds)]) for number in range(arguments.students)]
    with tempfile.TemporaryDirectory(prefix="term-") as folder:
        root = Path(folder).resolve() / "course"
        shutil.copytree(notebook.SOLUTIONS / lesson, root / "solutions" / lesson)
        shutil.copy(notebook.ROOT / library.CONFIG, root / library.CONFIG)
        term = Term(root, lesson, students, draw, arguments.jobs)
        go(term)
    print(f"{len(students)} students, {len(term.wrong)} thing(s) wrong or lost")
    for line in term.wrong:
        print(f"  {line}")
    return 1 if term.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
