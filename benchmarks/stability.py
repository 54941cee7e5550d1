"""Grades one class again and again on a busy machine, and counts the marks that differ from the first run's.

    .venv/bin/python benchmarks/stability.py [--times 20] [--load 4] [--students 6] [LESSON ...]

--load: processes that only compute meanwhile. The count should be 0: a grade must not depend on the machine's load.
"""

from __future__ import annotations

import argparse
import multiprocessing
import runpy
import shutil
import tempfile
import time
from pathlib import Path

from autograder.grade.course import Course
from autograder.lesson import notebook

hand_in = runpy.run_path(str(Path(__file__).with_name("grading.py")))["hand_in"]


def compute() -> None:
    """Keep a core busy until the process is ended."""
    while True:
        sum(range(10_000))


def main() -> None:
    """Grade, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("lessons", nargs="*", default=["03_step", "01_collectives"])
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--load", type=int, default=4)
    parser.add_argument("--students", type=int, default=6)
    arguments = parser.parse_args()
    busy = [multiprocessing.Process(target=compute, daemon=True) for _ in range(arguments.load)]
    with tempfile.TemporaryDirectory(prefix="class-") as folder:
        root = Path(folder)
        for lesson in arguments.lessons:
            hand_in(root, lesson, arguments.students)
            shutil.copytree(notebook.SOLUTIONS / lesson, root / "solutions" / lesson)
        course, first, differences = Course(root), None, 0
        for process in busy:
            process.start()
        for number in range(arguments.times):
            started = time.perf_counter()
            problems = course.grade(force=True)
            scores = course.scores()
            first = first or scores
            changed = [key for key in first.keys() | scores.keys() if first.get(key) != scores.get(key)]
            differences += len(changed)
            print(
                f"run {number + 1}: {time.perf_counter() - started:.0f} s, {len(changed)} of {len(scores)} differ",
                flush=True,
            )
            for key in sorted(changed):
                print(f"  {' '.join(key)}: {first.get(key)} at first, now {scores.get(key)}")
            for problem in problems:
                print(f"  {problem}")
    what = f"{arguments.times} gradings of {len(first)} marks, with {arguments.load} busy processes"
    print(f"{differences} differences in {what}")


if __name__ == "__main__":
    main()
