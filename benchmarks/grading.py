"""Grades one class twice, with plain nbgrader and with our grader, and compares times and gradebooks.

    .venv/bin/python benchmarks/grading.py [--students 30] [--jobs 2] [LESSON LESSON]
    .venv/bin/python benchmarks/grading.py --cost [LESSON ...]
    .venv/bin/python benchmarks/grading.py --table

Every student hands in each lesson: right answers, other right answers, known mistakes, half-done and untouched
notebooks, in turn. Plain nbgrader is `nbgrader autograde` with its own preprocessors; only the names of the folders are
ours. Our grader is `autograder grade`, in the jail, feedback included. They run one after the other and start
from the same gradebook. Prints both times, their ratio, and each row in which the two gradebooks differ.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.metadata
import itertools
import json
import multiprocessing
import os
import platform
import runpy
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import nbformat

from autograder.answers import right, wrong
from autograder.grade import example_class, isolation
from autograder.grade.course import Course
from autograder.grade.nbgrader import library
from autograder.grade.running import workers
from autograder.lesson import notebook
from ranks.stopwatch import Stopwatch, family

MAKE = runpy.run_path(str(example_class.EXAMPLE / "make.py"))
STOCK = """
c = get_config()
c.CourseDirectory.course_id = "distributed-training"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "notebooks"
c.Execute.timeout = 240
"""

GROUPS = Path("/sys/fs/cgroup/cpuacct")
MEASURED = Path(__file__).with_name("measured") / "grading.json"
PAGE = notebook.ROOT / "book" / "start" / "term.md"
#: Lessons of which a notebook with mistakes and one without answers are measured, too.
MORE = ("03_step", "05_ddp", "08_zero1")
STUDENTS, CORES = 120, (2, 4, 8, 16)


def hand_in(root: Path, lesson: str, students: int) -> None:
    """Write a notebook for each student into `root/submitted`."""
    solution = notebook.read(lesson)
    released = nbformat.read(notebook.NOTEBOOKS / lesson / f"{lesson}.ipynb", as_version=4)
    kinds = itertools.cycle(range(6))
    mistakes, others = itertools.cycle(wrong.load_wrong(lesson)), itertools.cycle(right.load_right(lesson))
    for number, kind in zip(range(students), kinds, strict=False):
        paper = MAKE["Paper"](lesson, nbformat.from_dict(released), solution)
        paper.nb = nbformat.reads(nbformat.writes(released), as_version=4)
        if kind == 5 and number % 12 == 5:
            paper.leave(*paper.answers)
        elif kind == 5:
            paper.write(*paper.answers[: len(paper.answers) // 2])
        else:
            paper.write(*paper.answers)
        if kind in (1, 2, 3):
            mistake = next(mistakes)
            paper.cell(mistake.cell).source = mistake.source.rstrip("\n")
        if kind == 4:
            answer = next(others)
            paper.cell(answer.cell).source = answer.source.rstrip("\n")
        path = root / "submitted" / f"student-{number + 1:02d}" / lesson / f"{lesson}.ipynb"
        path.parent.mkdir(parents=True)
        nbformat.write(paper.nb, path)


def gradebook(root: Path) -> dict[tuple[str, str, str], float]:
    """(student, lesson, test) → automatic score."""
    query = """select sa.student_id, a.name, gc.name, g.auto_score from grade g
        join submitted_notebook sn on g.notebook_id = sn.id join submitted_assignment sa on sn.assignment_id = sa.id
        join assignment a on sa.assignment_id = a.id join base_cell gc on g.cell_id = gc.id"""
    with sqlite3.connect(root / "gradebook.db") as database:
        return {tuple(row[:3]): row[3] for row in database.execute(query)}


def timed(command: list[str], root: Path) -> float:
    """Seconds that a command takes in `root`; a failure is printed."""
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", *command], cwd=root, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if done.returncode:
        print(f"{' '.join(command[:2])} ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    return seconds


class Processors:
    """Counts the processor seconds of this process and all that it starts from now on.

    By a control group of version 1: the system counts a process there even if nobody waits for it, as in a jail whose
    first process ends. OSError where this user cannot make one.
    """

    def __init__(self) -> None:
        self.group = GROUPS / f"grading-{os.getpid()}"
        self.group.mkdir()
        (self.group / "cgroup.procs").write_text("0")

    def seconds(self) -> float:
        """So far, user and system."""
        return int((self.group / "cpuacct.usage").read_text()) / 1e9


def bytes_of(pid: int) -> int:
    """The memory of all that a process has started, itself left out; what several share is counted once."""
    found = 0
    for one in family(pid)[1:]:
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
            found += int(next(line for line in lines if line.startswith("Pss:")).split()[1]) * 1024
    return found


def grade_one_by_one(root: Path, jobs: list[tuple[str, str]], say: Connection) -> None:
    """Grade submissions, (student, lesson), twice with one worker, and say what each needed.

    The first time pays for the start of the worker and its jail, and for running the known wrong answers: a worker
    keeps their outcomes.
    """
    course, processors = Course(root), Processors()
    with workers.Workers(workers.WORTH_A_WORKER, 1, kernels=isolation.kernels(True)) as pool:
        for job in jobs + jobs:
            say.send(None)
            say.recv()
            before = time.perf_counter(), processors.seconds(), time.process_time()
            for _, executed, error in pool.run([course.task(*job)]):
                if problem := course.write_grade(*job, executed, error):
                    raise RuntimeError(problem)
            after = time.perf_counter(), processors.seconds(), time.process_time()
            say.send([end - begin for begin, end in zip(before, after, strict=True)])
            say.recv()
    say.send({"/".join(key[:2]): row for key, row in course.totals().items()})


def costs(root: Path, lesson: str, points: dict[str, float]) -> Iterator[dict[str, Any]]:
    """What grading each submission of a lesson needs, as a row of `MEASURED`. points: student → what it should get.

    This process watches the one that grades: how much memory its worker and the jail have, and for how many seconds it
    computes or waits for something else than a processor.
    """
    jobs = [(student, lesson) for student in points]
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    grader = context.Process(target=grade_one_by_one, args=(root, jobs, there))
    grader.start()
    there.close()
    pid, rows = int(grader.pid or 0), []
    for student, _ in jobs + jobs:
        here.recv()
        watch, memory = Stopwatch(lambda: [pid]), 0
        here.send("go on")
        while not here.poll(0.1):
            memory = max(memory, bytes_of(pid))
            watch.seconds()
        wall, used, serial = here.recv()
        here.send("go on")
        row: dict[str, Any] = {"lesson": lesson, "answers": student}
        row |= {"processor_s": round(used, 2), "of_this_serial_s": round(serial, 2)}
        row |= {"without_others_s": round(watch.seconds(), 1), "wall_s": round(wall, 1)}
        rows.append(row | {"peak_MiB": round(memory / 2**20), "load": round(os.getloadavg()[0], 1)})
    totals = here.recv()
    grader.join()
    group = GROUPS / f"grading-{pid}"
    while (group / "cgroup.procs").read_text():  # what it has started is still ending
        time.sleep(0.1)
    group.rmdir()
    for first, row in zip(rows[: len(jobs)], rows[len(jobs) :], strict=True):
        if row["answers"] == "mistakes":
            row["processor_first_s"] = first["processor_s"]
        score, most = totals[f"{row['answers']}/{lesson}"]
        if abs(score - points[row["answers"]]) > 1e-9:
            raise RuntimeError(f"{lesson}, {row['answers']}: {score} of {most} points, not {points[row['answers']]}")
        yield row


def measure(lessons: list[str]) -> None:
    """Measure these lessons, and replace their rows in `MEASURED`."""
    if not os.access(GROUPS, os.W_OK):
        sys.exit(f"grading.py: --cost needs control groups of version 1: {GROUPS} is missing or cannot be written")
    for lesson in lessons:
        with tempfile.TemporaryDirectory(prefix="class-") as folder:
            root, points = Path(folder).resolve(), dict[str, float]()
            shutil.copytree(notebook.SOLUTIONS / lesson, root / "solutions" / lesson)
            Course(root).prepare(lesson)
            for student in ("right", "mistakes", "nothing") if lesson in MORE else ("right",):
                released = nbformat.read(notebook.NOTEBOOKS / lesson / f"{lesson}.ipynb", as_version=4)
                paper = MAKE["Paper"](lesson, released, notebook.read(lesson))
                if student == "nothing":
                    paper.leave(*paper.answers)
                else:
                    paper.write(*paper.answers)
                if student == "mistakes":
                    for mistake in {
                        one.cell: one for one in reversed(wrong.load_wrong(lesson))
                    }.values():  # the first of each
                        paper.mistake(mistake.name)
                points[student] = sum(map(paper.points, paper.tests))
                path = root / "submitted" / student / lesson / f"{lesson}.ipynb"
                path.parent.mkdir(parents=True)
                nbformat.write(paper.nb, path)
            for row in costs(root, lesson, points):
                print(json.dumps(row), flush=True)
                keep(row)


def keep(row: dict[str, Any]) -> None:
    """Put a row into `MEASURED`, with the machine and the versions of this run."""
    cpu = Path("/proc/cpuinfo").read_text().split("model name")[1].split("\n")[0].strip(" \t:")
    packages = {name: importlib.metadata.version(name) for name in ("torch", "numpy", "nbgrader")}
    about = {"processor": cpu, "cores": workers.cores(), "date": datetime.date.today().isoformat()}
    about |= {"system": f"Linux {platform.release()}", "python": platform.python_version(), **packages}
    rows = json.loads(MEASURED.read_text())["rows"] if MEASURED.is_file() else []
    rows = [one for one in rows if (one["lesson"], one["answers"]) != (row["lesson"], row["answers"])] + [row]
    rows.sort(key=lambda one: (one["answers"] != "right", one["lesson"]))
    lines = ",\n".join(f"    {json.dumps(one)}" for one in rows)
    MEASURED.write_text(f'{{\n  "about": {json.dumps(about)},\n  "rows": [\n{lines}\n  ]\n}}\n')


def minutes(row: dict[str, Any], cores: int) -> float:
    """Minutes for `STUDENTS` such notebooks, with one worker per core and nothing else running.

    One process prepares all notebooks and writes all grades, so that no number of cores takes less than it does.
    """
    each = max(row["processor_s"], row["without_others_s"])
    return STUDENTS * max(each / cores, row["of_this_serial_s"]) / 60


def tables() -> list[list[str]]:
    """The lines of the tables of what was measured, as the instructor's page has them: right notebooks, and others."""
    rows = json.loads(MEASURED.read_text())["rows"]
    units = ["processor (s)", "with its waits (s)", "by the clock (s)", "memory (MiB)"]
    right = [["lesson", *units, *(f"{cores} cores (min)" for cores in CORES)]]
    for row in rows:
        if row["answers"] == "right":
            seconds = row["processor_s"], max(row["processor_s"], row["without_others_s"]), row["wall_s"]
            figures = [f"{value:.1f}" for value in (*seconds, *(minutes(row, cores) for cores in CORES))]
            right.append([row["lesson"][:2], *figures[:3], f"{row['peak_MiB']:,}", *figures[3:]])
    others = [["lesson", "all right", "mistakes, first notebook", "mistakes, a later one", "nothing"]]
    for lesson in MORE:
        found = {row["answers"]: row for row in rows if row["lesson"] == lesson}
        first = found["mistakes"]["processor_first_s"]
        seconds = [
            found["right"]["processor_s"],
            first,
            *(found[name]["processor_s"] for name in ("mistakes", "nothing")),
        ]
        others.append([lesson[:2], *(f"{value:.1f}" for value in seconds)])
    return [_lines(right), _lines(others)]


def _lines(rows: list[list[str]]) -> list[str]:
    """A table in Markdown; the first row is its head."""
    head, *rest = rows
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] + ["---:"] * (len(head) - 1), *rest)]


def write_tables() -> None:
    """Put the tables into the instructor's page, each in the place of the one with the same head."""
    lines = PAGE.read_text(encoding="utf-8").split("\n")
    for new in tables():
        first = lines.index(new[0])
        last = next(at for at in range(first, len(lines)) if not lines[at].startswith("|"))
        lines[first:last] = new
    PAGE.write_text("\n".join(lines), encoding="utf-8")


def main() -> None:
    """Make the class, grade it twice, print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("lessons", nargs="*")
    parser.add_argument("--students", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cost", action="store_true", help="measure what one submission needs (default: each lesson)")
    parser.add_argument("--table", action="store_true", help="write what was measured into the instructor's page")
    arguments = parser.parse_args()
    if arguments.cost:
        measure(notebook.pick(arguments.lessons))
    if arguments.table:
        write_tables()
    if arguments.cost or arguments.table:
        return
    arguments.lessons = arguments.lessons or ["03_step", "01_collectives"]
    with tempfile.TemporaryDirectory(prefix="class-") as folder:
        ours, stock = Path(folder).resolve() / "ours", Path(folder).resolve() / "stock"
        for lesson in arguments.lessons:
            shutil.copytree(notebook.SOLUTIONS / lesson, ours / "solutions" / lesson)
            Course(ours).prepare(lesson)
            hand_in(ours, lesson, arguments.students)
        shutil.copytree(ours, stock)
        (stock / library.CONFIG).write_text(STOCK)
        shutil.copy(notebook.ROOT / library.CONFIG, ours / library.CONFIG)
        theirs = sum(timed(["nbgrader", "autograde", lesson], stock) for lesson in arguments.lessons)
        count = arguments.students * len(arguments.lessons)
        print(f"nbgrader autograde: {count} notebooks in {theirs:.0f} s, {theirs / count:.2f} s each", flush=True)
        mine = timed(["autograder", "grade", "--course", str(ours), "--jobs", str(arguments.jobs)], ours)
        print(f"ours, {arguments.jobs} workers, jailed: {mine:.0f} s, {mine / count:.2f} s each")
        print(f"ratio: {theirs / mine:.1f}")
        one, other = gradebook(stock), gradebook(ours)
        differing = [key for key in sorted(one.keys() | other.keys()) if one.get(key) != other.get(key)]
        print(f"{len(differing)} of {len(other)} rows differ")
        for key in differing:
            print(f"  {' '.join(key)}: nbgrader {one.get(key)}, ours {other.get(key)}")


if __name__ == "__main__":
    main()
