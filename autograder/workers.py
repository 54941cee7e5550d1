"""Runs submissions in worker processes: here, or on the machines of a Dask cluster.

A task is all that a worker needs, as data: the cells to run, the instructor's notebook, the files beside it, the
limits. A worker keeps its jail and the known wrong answers' outcomes from one task to the next, which is why a
class is graded faster than its notebooks one by one. Workers write nothing: grades are the writer's business
(`grading`).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import multiprocessing
import os
import threading
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any

import nbformat

from autograder import execution

#: A worker starts slowly and then works fast: fewer than so many submissions are not worth another one.
WORTH_A_WORKER = 4


@dataclass(frozen=True)
class Task:
    """One notebook to run. cells, lesson: notebooks as text; files: what lies beside, by name.

    limits, jail, demonstrations: as `execution.RunCells` has them.
    """

    name: tuple[str, str]
    cells: str
    lesson: str
    files: dict[str, bytes] = field(default_factory=dict)
    limits: execution.Limits = field(default_factory=execution.Limits)
    jail: bool = True
    demonstrations: bool = False


#: One notebook at a time in a process: some of what a grade cell needs is the process's own.
_one_at_a_time = threading.Lock()


def execute(task: Task) -> str:
    """Run a task in this process: the notebook with its outputs and `metadata.autograder`, as text."""
    with _one_at_a_time:
        _share_inputs()
        nb = nbformat.reads(task.cells, as_version=4)
        lesson = nbformat.reads(task.lesson, as_version=4)
        execution.run_submission(nb.cells, lesson, task.files, task)
        return nbformat.writes(nb)


@functools.cache
def _share_inputs() -> None:
    """Once a process: what the known wrong answers do is then found out once for all submissions."""
    from autograder import check

    check.share_inputs()


Outcome = tuple[Task, str, Exception | None]


class Workers:
    """Where tasks run: in this process, in `jobs` others, or on a Dask cluster. To be used in a `with`.

    expected: how many tasks there will be. scheduler: address of a Dask scheduler, to use its workers instead.
    """

    def __init__(self, expected: int, jobs: int = 1, scheduler: str = ""):
        self.scheduler = scheduler
        self.jobs = min(jobs, -(-expected // WORTH_A_WORKER))
        self.pool: concurrent.futures.ProcessPoolExecutor | None = None
        self.client: Any = None

    def __enter__(self) -> Workers:
        if self.scheduler:
            self.client = _client(self.scheduler)
        return self

    def __exit__(self, *_: Any) -> None:
        if self.client is not None:
            self.client.close()
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)

    def run(self, tasks: list[Task]) -> Iterator[Outcome]:
        """Each task with its executed notebook, or '' and the error, in the order in which they are done."""
        if self.client is not None:
            yield from self._on_cluster(tasks)
        elif self.jobs < 2:
            for task in tasks:
                yield _attempt(task)
        else:
            yield from self._in_processes(tasks)

    def _in_processes(self, tasks: list[Task]) -> Iterator[Outcome]:
        left, alone = list(tasks), False
        while left:
            # When a worker dies, nobody knows on which task: each of those left is then tried by itself.
            batch, left = (left[:1], left[1:]) if alone else (left, [])
            if self.pool is None:
                self.pool = concurrent.futures.ProcessPoolExecutor(self.jobs, multiprocessing.get_context("spawn"))
            broken = []
            futures = {self.pool.submit(execute, task): task for task in batch}
            for future in concurrent.futures.as_completed(futures):
                task, error = futures[future], future.exception()
                if isinstance(error, BrokenProcessPool):
                    broken.append((task, error))
                else:
                    yield task, "" if error else future.result(), error
            if broken:
                self.pool.shutdown()
                self.pool = None
            if alone:
                yield from ((task, "", error) for task, error in broken)
            else:
                left, alone = [task for task, _ in broken], bool(broken)

    def _on_cluster(self, tasks: list[Task]) -> Iterator[Outcome]:
        from dask.distributed import as_completed

        futures = {self.client.submit(execute, task, pure=False, retries=1): task for task in tasks}
        for future in as_completed(futures):
            task, error = futures[future], future.exception()
            yield task, "" if error else future.result(), error
            future.release()


def _attempt(task: Task) -> Outcome:
    try:
        return task, execute(task), None
    except Exception as error:
        return task, "", error


def _client(scheduler: str) -> Any:
    from dask.distributed import Client

    try:
        client = Client(scheduler, timeout=20)
    except (OSError, TimeoutError) as error:
        raise ValueError(f"no Dask scheduler answers at {scheduler}: {error}") from None
    if not client.scheduler_info()["workers"]:
        client.close()
        raise ValueError(f"the Dask scheduler at {scheduler} has no workers: start `dask worker {scheduler}`")
    return client


def cores() -> int:
    """How many processes can run at once here."""
    with contextlib.suppress(AttributeError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
