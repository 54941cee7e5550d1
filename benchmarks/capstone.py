"""Does the capstone's run succeed every time, and how many seconds does it take?

    python benchmarks/capstone.py [--runs 100] [--world-size 4]

Each run is a Python process of its own: it trains 20 steps with a checkpoint at step 10, resumes from it, verifies
the resumed run, and ends. Afterwards no process and no file of the run may be left. Prints how many runs succeeded, and
the seconds that training and verification took with a warm ranks' server.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

MARK = "CAPSTONE_BENCHMARK"


def once(world_size: int) -> float:
    """One run in this process: its seconds. RuntimeError if the resumed run differs."""
    import ranks
    from autograder.lesson import notebook

    lesson = notebook.functions("17_capstone")
    ranks.run(_nothing, world_size)  # warm: the server has loaded torch
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as root:
        uninterrupted = list(ranks.run(lesson["train"], world_size, (20, root, 10)))
        verdicts = ranks.run(lesson["verify_resume"], world_size, (uninterrupted,))
    if not all(verdict["ok"] for verdict in verdicts):
        raise RuntimeError(f"the resumed run differs: {list(verdicts)}")
    return time.perf_counter() - begin


def _nothing(rank: int, world_size: int) -> None:
    pass


def run(world_size: int) -> tuple[float, list[str]]:
    """One run in a process of its own: its seconds, and its problems."""
    mark, problems, seconds = uuid.uuid4().hex, [], 0.0
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, __file__, "--once", "--world-size", str(world_size)]
        environment = {**os.environ, "TMPDIR": folder, MARK: mark}
        environment["TORCHINDUCTOR_CACHE_DIR"] = cache  # torch makes this folder when it is imported, and keeps it
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        if done.returncode:
            problems.append(f"exit {done.returncode}: {done.stderr.strip()[-300:]}")
        else:
            seconds = float(done.stdout)
        problems += [f"left behind: {path.name}" for path in Path(folder).iterdir()]
        problems += [f"orphan: process {pid}" for pid in orphans(mark)]
    return seconds, problems


def orphans(mark: str) -> list[int]:
    """Processes with a run's mark in their environment, up to 2 seconds after its end; without /proc, none."""
    for _ in range(20):
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if f"{MARK}={mark}".encode() in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:  # it has ended, or belongs to another user
                continue
        if not found:
            break
        time.sleep(0.1)
    return found


def main() -> None:
    """Repeat the run; print a line for each problem."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--world-size", type=int, default=4)
    parser.add_argument("--once", action="store_true", help="one run in this process; prints its seconds")
    arguments = parser.parse_args()
    if arguments.once:
        print(once(arguments.world_size))
        return
    times, good = [], 0
    for number in range(1, arguments.runs + 1):
        seconds, problems = run(arguments.world_size)
        good += not problems
        times += [seconds] if seconds else []
        for problem in problems:
            print(f"run {number}: {problem}")
    print(f"{good} of {arguments.runs} runs ended with exit 0, without an orphan or a file left behind")
    if times:
        print(f"20 steps, checkpoint, resume and comparison on {arguments.world_size} ranks, warm:")
        print(f"  median {statistics.median(times):.2f} s, at most {max(times):.2f} s")


if __name__ == "__main__":
    main()
