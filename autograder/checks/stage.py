"""Where a submission runs, and what checks do with it there.

In a notebook, under papermill or with stock nbgrader the student's objects are ordinary ones of this process. When a
class is graded they live in a jail, and this process holds handles of them (`grade.jail.handles`). A check does not
care: it calls functions on arrays, and uses the three functions of this module for all else. What these do is the
`Stage` of the moment.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autograder.checks import faults
from autograder.checks.expect import DIED, HANG, RAISED, CheckFailed, count_of_ranks, fail


@dataclass(frozen=True)
class Stage:
    """How a submission's objects are used.

    call: (function, args) → what it returns, run next to the submission. apart: an object → the one of the same name
    in a second process that has run the same cells. jailed: whether the submission runs in a jail.
    """

    call: Callable[[Callable, tuple], Any]
    apart: Callable[[Any], Any]
    jailed: bool


#: The submission lives in this process.
HERE = Stage(call=lambda function, args: function(*args), apart=lambda subject: subject, jailed=False)

_stage: ContextVar[Stage] = ContextVar("stage", default=HERE)


@contextlib.contextmanager
def on(stage: Stage) -> Iterator[None]:
    """Inside, checks use this stage."""
    token = _stage.set(stage)
    try:
        yield
    finally:
        _stage.reset(token)


def call_inside(function: Callable, *args: Any) -> Any:
    """`function(*args)`, in the jail if the arguments mention a submission that runs there.

    For what does not cross its wall: what an object does to another one, gradients, who shares memory with whom. A
    function of a check that watches for this is sent there, and so is a class of one: what comes back is then an
    object whose methods are called there. It returns all that the check wants to know: in the jail it gets copies, and
    what it changes in them does not come back.
    """
    return _stage.get().call(function, args)


class Oracle:
    """A function of a check that a submission may call, and that answers here: what it knows does not enter the jail.

    It gets plain data and gives plain data. An error that it raises is raised where it was called.
    """

    def __init__(self, function: Callable):
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def called_at_once(function: Callable, calls: Iterable[tuple]) -> Callable:
    """A function that gives what `function` gives for these arguments, in this order; then it is `function` itself.

    The calls are made now, next to the submission, up to the first that raises: hundreds of trips into a jail take
    longer than the calls. Only for plain arguments, and for calls that no wrong answer makes slow.
    """
    calls = list(calls)
    known = list(zip(calls, call_inside(_results_until_error, function, calls), strict=False))[::-1]

    def answer(*arguments: Any) -> Any:
        if not known:
            return function(*arguments)
        before, result = known.pop()
        assert arguments == before
        return result

    return answer


def _results_until_error(function: Callable, calls: list[tuple]) -> list[Any]:
    results = []
    for arguments in calls:
        try:
            results.append(function(*arguments))
        except Exception:
            break
    return results


def apart(subject: Any) -> Any:
    """A function or class of the submission; in the jail, the one of a second process that has run the same cells.

    That process has seen nothing of what this test has given to the submission, and cannot learn it from the first.
    Without a jail it is the same object.
    """
    return _stage.get().apart(subject)


def jailed() -> bool:
    """Does the submission run in a jail? Then both sides see only the files in `tempfile`'s own folder."""
    return _stage.get().jailed


# ---- launches ----


class LaunchesExceeded(Exception):
    """A known wrong answer passed the launch in which the student's answer failed: it is another mistake."""


@dataclass
class Launches:
    """How often a check has started ranks, and how often it may.

    A known wrong answer that survives the launch in which the student's answer failed is not the same mistake; to run
    it to its end would only cost time. ledger: the messages that a picture of the next failure should show.
    """

    most: float = math.inf
    count: int = 0
    ledger: Any = None


_launches: ContextVar[Launches] = ContextVar("launches")


@contextlib.contextmanager
def counted(launches: Launches) -> Iterator[None]:
    """Inside, a check runs whose launches are counted here."""
    token = _launches.set(launches)
    try:
        yield
    finally:
        _launches.reset(token)


def picture(ledger: Any) -> None:
    """If what follows fails, these messages are what the student should see; else all of the last launch."""
    _launches.get(Launches()).ledger = ledger


def preload(driver: Callable) -> None:
    """Let the ranks of later runs share one import of the module of a driver, if it is ours."""
    from ranks import processes

    if (module := getattr(driver, "__module__", "")).startswith("autograder."):
        processes.PRELOAD.add(module)


def run_ranks(
    worker: Callable,
    world_size: int,
    args: tuple,
    timeout: float = 20.0,
    recorded: bool = False,
    driver: Callable | None = None,
) -> Any:
    """`ranks.run` for a check: a hang or a failing rank is a failed property whose message says how many ranks ran.

    recorded: all that the ranks have to tell each other goes through sends and receives, so that the ledger has it.
    Where a jail has measured what their network carried, the two are compared: a rank can write anything into its
    ledger, but it cannot lower the system's count. driver: the check's function that the worker runs, if it is not the
    worker itself.
    """
    import ranks
    from ranks import source

    # Messages to students quote no line of a test or an oracle.
    source.HIDDEN.update(dict.fromkeys([f"{_PACKAGE}{os.sep}", *map("{}/checks".format, _SOLUTIONS.glob("*"))], OURS))
    launches = _launches.get(Launches())
    launches.count += 1
    if launches.count > launches.most:
        raise LaunchesExceeded
    preload(worker)
    case = count_of_ranks(world_size)
    picture(None)
    try:
        results = ranks.run(_to_its_end, world_size=world_size, args=(worker, args), timeout=timeout, echo=False)
        picture(results.ledger)
        if recorded:
            _expect_recorded(case, results)
        return results
    except ranks.RankError as error:
        if error.type_name == "NotImplementedError":
            raise
        where = without_our_lines(error.where)
        where = "" if where in ("", OURS) else f" ({where})"
        text, kind = f"With {case}, {error.headline}{where}", RAISED if error.type_name else DIED
        compared = (case, error.evidence)
        fault = "" if where else faults.of_driver(error, driver or worker)
        raise CheckFailed(text, "", error.evidence, kind, error.type_name, compared, fault) from error
    except ranks.HangError as error:
        text, compared = f"With {case}, {without_our_lines(str(error))}", (case, error.evidence)
        raise CheckFailed(text, "", error.evidence, kind=HANG, compared=compared) from error


def _to_its_end(rank: int, world_size: int, worker: Callable, args: tuple) -> Any:
    """Inside a rank: the worker's result. `ranks` takes sys.exit for the end of a program; here nobody may call it."""
    try:
        return worker(rank, world_size, *args)
    except SystemExit:
        raise RuntimeError("the process of this rank was ended by sys.exit") from None


#: What stands for a line of the grader's own code, which the student does not have.
OURS = "a line of the test"
#: Where that code is: in this package, and in the folders of the lessons.
_PACKAGE = Path(__file__).resolve().parents[1]
_SOLUTIONS = _PACKAGE.parent / "solutions"


def without_our_lines(text: str) -> str:
    """A message of `ranks` in which no file of the grader is named.

    In a jail, `ranks` cannot know which files these are: their functions came there by value.
    """
    return re.sub(rf"\b({'|'.join(map(re.escape, _own_files()))}), line \d+(: [^\n]*)?", OURS, text)


@functools.cache
def _own_files() -> list[str]:
    places = _PACKAGE.glob("checks/**/*.py"), _SOLUTIONS.glob("*/checks/**/*.py"), _SOLUTIONS.glob("*/checks.py")
    found = {path.name for paths in places for path in paths}
    return sorted(found - {"__init__.py"}, key=len, reverse=True)


#: The network may carry this many times what the ledger says, and this many bytes more: packets have headers, ranks
#: connect and wait at barriers (0.9 MB for 8 ranks and 1900 messages), a worker may form groups of its own.
_OVERHEAD_FACTOR, _OVERHEAD_BYTES = 1.5, 4 * 2**20


def _expect_recorded(case: str, results: Any) -> None:
    carried, sent = getattr(results, "carried", None), sum(results.ledger.bytes_sent())
    if carried is not None and not sent <= carried <= _OVERHEAD_FACTOR * sent + _OVERHEAD_BYTES:
        text = f"the ledger says that the ranks sent {sent} bytes, their network carried {carried}"
        fail(f"{text}: send and receive with torch.distributed's functions", case, "unrecorded")
