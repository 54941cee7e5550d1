"""Runs submissions in worker processes on this machine, or on the machines of a Dask cluster.

A task is all that a worker needs, as data: the restored notebook, the instructor's, the other files in its folder, the
limits. A worker keeps what its kernels have started, and the known wrong answers' outcomes, from one task to the next,
which is why a class takes less time than its notebooks one by one. Workers do not write grades: `course` does.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import copy
import functools
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from typing import Any

from nbformat import NotebookNode

from autograder.grade import limits, outcome
from autograder.grade.running import clock, kernels, submission
from autograder.grade.running.run_cells import Limits

#: A worker takes seconds to start: for fewer submissions than this, another one saves no time.
WORTH_A_WORKER = 4

#: How many tasks per worker are prepared in advance, and how many in all while the workers start.
AHEAD, PREPARED = 2, 100


@dataclass(frozen=True)
class Task:
    """One notebook to run. nb: the restored one. lesson: the instructor's. files: the others in its folder, by name.

    kernels: the module that makes its kernels (`kernels.Kernels`). limits, demonstrations: as `RunCells` has them.
    again: the cells have been run, and only tests that fail are tried once more.
    """

    name: tuple[str, str]
    nb: NotebookNode
    lesson: NotebookNode
    kernels: str
    files: dict[str, bytes] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    demonstrations: bool = False
    again: bool = False


#: One notebook at a time in a process: a grade cell changes settings that the whole process shares.
_one_at_a_time = threading.Lock()


def execute(task: Task) -> NotebookNode:
    """Run a task in this process: the notebook with its outputs and what became of it and its cells."""
    with _one_at_a_time:
        _share_inputs()
        nb = copy.deepcopy(task.nb)
        whole = outcome.of_notebook(nb)
        if whole.problem:
            return nb  # nothing of it could be read
        began, own = time.monotonic(), clock.now()
        with limits.bounded_time(limits.WORKER_SECONDS) if _is_worker() else contextlib.nullcontext():
            submission.run_submission(nb.cells, task)
        # Others had the processors for most of the time.
        whole.busy = clock.now() - own < (time.monotonic() - began) / 2
        outcome.to_metadata(nb, whole)
        return nb


def _is_worker() -> bool:
    """Is this a process that may die, and in whose main thread tasks run?"""
    return multiprocessing.parent_process() is not None and threading.current_thread() is threading.main_thread()


@functools.cache
def _share_inputs() -> None:
    """Once per process, so that the known wrong answers are run once for all submissions, not for each."""
    from autograder.checks import check

    check.share_inputs()


#: A task with its executed notebook, or with the error that it ended with.
Finished = tuple[Task, NotebookNode | None, Exception | None]


class Workers:
    """Where tasks run: in `jobs` other processes, on a Dask cluster, or in this process. To be used in a `with`.

    expected: how many tasks there will be. scheduler: address of a Dask scheduler, to use its workers instead.
    kernels: the module whose kernels the tasks use. Where a submission may be the end of its worker, even one worker
    is another process. Workers prepare the kernels at once, while this process still prepares the tasks.
    """

    def __init__(self, expected: int, jobs: int = 1, scheduler: str = "", kernels: str = kernels.LOCAL):
        self.scheduler = scheduler
        self.jobs = max(1, min(jobs, -(-expected // WORTH_A_WORKER)))
        self.kernels = kernels
        self.pool: concurrent.futures.ProcessPoolExecutor | None = None
        self.starting: threading.Thread | None = None
        self.client: Any = None

    def __enter__(self) -> Workers:
        if self.scheduler:
            self.client = _client(self.scheduler)
        elif self.jobs > 1 or self.kernels != kernels.LOCAL:
            self._start_pool()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: Any) -> None:
        if self.client is not None:
            self.client.close()
        if self.pool is not None:
            if error is not None:  # interrupted: what runs now is run again next time
                for process in list((self.pool._processes or {}).values()):
                    process.terminate()
            self.pool.shutdown(cancel_futures=True)

    def prepared(self, tasks: Iterable[Task]) -> Iterator[Task]:
        """The same tasks, for `run`: made now, as many as can be while the workers start, when a core is idle."""
        coming, made = iter(tasks), list[Task]()
        while self.starting is not None and self.starting.is_alive() and len(made) < PREPARED:
            if (task := next(coming, None)) is None:
                break
            made.append(task)
        return itertools.chain(made, coming)

    def run(self, tasks: Iterable[Task]) -> Iterator[Finished]:
        """Each task with its executed notebook or its error, in the order in which they end.

        A task whose kernel did not start is tried again after all others: that need not be its own fault. So are tests
        that failed by a limit of time or by a hang, after that and one notebook at a time: a neighbor may have had the
        processors. Of these, what the second run says counts.
        """
        unstarted, slow = list[Task](), list[Finished]()
        for some in (tasks, unstarted):
            for found in self._run(some):
                if some is tasks and isinstance(found[2], (OSError, kernels.NotStartedError)):
                    unstarted.append(found[0])
                elif _is_slow(found):
                    slow.append(found)
                else:
                    yield found
        for task, executed, _ in slow:
            assert executed is not None
            for _, twice, _ in self._run([replace(task, nb=executed, again=True)]):
                yield task, twice or executed, None

    def _run(self, tasks: Iterable[Task]) -> Iterator[Finished]:
        if self.client is not None:
            yield from self._on_cluster(tasks)
        elif self.pool is None:
            yield from map(_attempt, tasks)
        else:
            yield from self._in_processes(tasks)

    def _start_pool(self) -> None:
        if self.pool is not None:
            self.pool.shutdown()
        self.pool = concurrent.futures.ProcessPoolExecutor(self.jobs, _context(), _begin, (self.kernels,))
        # In a thread: the first worker is there when the process from which it is forked has imported everything.
        self.starting = threading.Thread(target=_start_workers, args=(self.pool, self.jobs), daemon=True)
        self.starting.start()

    def _in_processes(self, tasks: Iterable[Task]) -> Iterator[Finished]:
        coming = iter(tasks)
        running: dict[Future, Task] = {}
        while True:
            # Not all at once: workers start on the first tasks while this process prepares the next ones.
            for task in itertools.islice(coming, max(0, AHEAD * self.jobs - len(running))):
                running[self._submit(task)] = task
            if not running:
                return
            done = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED).done
            if any(isinstance(future.exception(), BrokenProcessPool) for future in done):
                # A worker died, and which task it ran is unknown: each unfinished task is tried by itself.
                yield from self._one_by_one(running)
                running = {}
            for future in done & running.keys():
                yield _finished(running.pop(future), future)

    def _submit(self, task: Task) -> Future:
        assert self.pool is not None
        try:
            return self.pool.submit(execute, task)
        except BrokenProcessPool as error:
            future: Future = Future()
            future.set_exception(error)
            return future

    def _one_by_one(self, running: dict[Future, Task]) -> Iterator[Finished]:
        concurrent.futures.wait(running)
        broken = True
        for future, task in running.items():
            if isinstance(future.exception(), BrokenProcessPool):
                if broken:
                    self._start_pool()
                future = self._submit(task)
                broken = isinstance(future.exception(), BrokenProcessPool)
            yield _finished(task, future)
        if broken:
            self._start_pool()

    def _on_cluster(self, tasks: Iterable[Task]) -> Iterator[Finished]:
        from dask.distributed import as_completed

        futures = {self.client.submit(execute, task, pure=False, retries=1): task for task in tasks}
        for future in as_completed(futures):
            yield _finished(futures[future], future)
            future.release()


def _is_slow(found: Finished) -> bool:
    """Did tests fail by a limit of time or by a hang?"""
    return found[1] is not None and outcome.failed_by_time(map(outcome.of_metadata, found[1].cells))


def _start_workers(pool: concurrent.futures.ProcessPoolExecutor, jobs: int) -> None:
    with contextlib.suppress(RuntimeError):  # the pool has been shut down, or a worker has died: `run` will report it
        for _ in range(jobs):
            pool.submit(os.getpid)  # each one makes the pool start a process


def _finished(task: Task, future: Any) -> Finished:
    error = future.exception()
    return task, None if error else future.result(), error


def _attempt(task: Task) -> Finished:
    try:
        return task, execute(task), None
    except Exception as error:
        return task, None, error


def begin_to_import() -> None:
    """Start the process from which workers are forked, which imports for seconds, before it is known what to grade."""
    if sys.platform == "linux":
        from multiprocessing import forkserver

        _context()
        forkserver.ensure_running()


def _context() -> multiprocessing.context.BaseContext:
    """How workers are started: on Linux, forked from a process that has imported everything they need."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["autograder.grade.preload"])
    return context


def _begin(makes: str) -> None:
    """Prepare a fresh worker, before its first task is ready. makes: the module whose kernels the tasks use."""
    from ranks import processes

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes of the terminal; the parent ends this
    signal.signal(signal.SIGTERM, lambda *_: _leave(makes))
    if sys.platform == "linux":
        processes.fork_server()  # before there are threads
    threading.Thread(target=_end_with_parent, args=(makes,), daemon=True).start()
    limits.bound_memory(limits.WORKER_MEMORY)
    with contextlib.suppress(kernels.NotStartedError):  # the first task will report it
        kernels.module(makes).prepare()


def _end_with_parent(makes: str) -> None:
    """End this worker when its parent ends; a worker whose parent was killed would wait for tasks forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    _leave(makes)


def _leave(makes: str) -> None:
    """End this worker at once, with what its kernels have started, and their files."""
    kernels.module(makes).leave_nothing()
    os._exit(1)


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
    """How many processes can run at once on this machine."""
    with contextlib.suppress(AttributeError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
