"""What a check is: a property of a student's functions, tried on fresh inputs, that names the mistake.

A check is an ordinary function over the student's objects, decorated with the exercise it grades::

    @check("03-ex1-worker-gradient")
    def worker_gradient_follows_the_formula(worker_gradient, *, rng):
        x, y, w = ...                                   # fresh inputs, drawn from rng
        got = worker_gradient(x, y, w)                  # run the student's function
        expect_close("B = 3, d = 4", got, oracle(...), rtol=1e-9, hint="...")

Its positional parameters carry the notebook's names. That is what makes hints possible: when the property
fails, the same check is run once more, with the same inputs, on every known wrong answer to that exercise
(`autograder/answers/mutants`), and the hints of those that fail *in the same way, with the same evidence* are added
to the message.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import math
import os
import secrets
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

#: At most so many hints are shown: two wrong answers can look alike from outside.
MAX_HINTS = 2


class _Launches:
    """How often the check that runs now has started ranks, and how often it may.

    A known wrong answer that outlives the launch in which the student's answer failed is not the same
    mistake; to run it to its end would only cost time.
    """

    count, most = 0, math.inf
    #: The messages that a picture of the next failure should show.
    ledger: Any = None


class _Shared:
    """What the checks of this process share, once `share_inputs` was called."""

    seed: int | None = None
    #: Where hints are not looked for everywhere: the exercise, and the one known wrong answer, for which they are.
    hinted: str | None = None
    suspect: str | None = None
    #: (exercise, check, known wrong answer) → how it failed, after how many launches, and how many it was allowed.
    twins: ClassVar[dict[tuple[str, str, str], tuple[CheckFailed | None, int, float]]] = {}


def share_inputs() -> None:
    """From now on all checks of this process draw the same inputs, fresh in each process.

    For whoever grades many answers in one process: what the known wrong answers make of these inputs, which
    the hints need, is then found out once and not for each answer anew.
    """
    _Shared.seed = secrets.randbits(64)
    _Shared.twins.clear()


@contextlib.contextmanager
def hints_only_for(exercise: str, suspect: str | None = None) -> Iterator[None]:
    """Inside, checks of other exercises say what failed, and spare themselves the search for hints.

    suspect: the name of the one known wrong answer that is compared with what failed; without it, all are.
    """
    _Shared.hinted, _Shared.suspect = exercise, suspect
    try:
        yield
    finally:
        _Shared.hinted = _Shared.suspect = None


class _OutlivedError(Exception):
    """The answer passed where the student's failed."""


class CheckFailed(AssertionError):
    """A property does not hold.

    message: what the student reads. case: on which input. got: what was observed, as plain data; two
    failures with the same case and the same `got` are taken for the same mistake. hints: the docstrings of
    the known wrong answers that match.
    """

    def __init__(self, message: str, case: str = "", got: Any = None, hints: tuple[str, ...] = ()):
        self.message, self.case, self.got, self.hints = message, case, got, tuple(hints)
        #: The messages of the ranks that failed, if any: for a picture of them.
        self.ledger: Any = None
        super().__init__("\n".join([message, *(f"Hint: {hint}" for hint in self.hints)]))


def check(exercise: str) -> Callable[[Callable], Callable]:
    """Make a property of `exercise` (the grade_id of its solution cell) callable from a grade cell.

    The decorated function takes the student's objects by position and draws its inputs from `rng`.
    Whatever it raises reaches the caller as one `CheckFailed` whose text is meant for the student.
    """

    def decorate(body: Callable) -> Callable:
        @functools.wraps(body)
        def run(*subjects: Any) -> None:
            seed = secrets.randbits(64) if _Shared.seed is None else _Shared.seed
            failure = _failure(body, subjects, seed)
            if failure is None:
                return
            hints = _matching_hints(exercise, body, seed, failure)
            told = CheckFailed(failure.message, failure.case, failure.got, hints)
            told.ledger = failure.ledger
            raise told from failure.__cause__

        run.exercise = exercise
        return run

    return decorate


def fail(message: str, case: str, got: Any) -> None:
    """Report a property that does not hold: `message` for the student, `got` what was observed in `case`."""
    raise CheckFailed(f"{message} (case: {case})" if case else message, case, got)


def expect_close(
    case: str,
    got: Any,
    expected: np.ndarray,
    *,
    what: str,
    rtol: float,
    atol: float = 0.0,
    show_expected: bool = True,
    because: str = "",
) -> None:
    """`got` must have the shape of `expected` and its values within `atol + rtol * max|expected|`.

    what: the quantity, as the subject of a sentence ("the gradient"). because: one clause that helps,
    never the answer. Comparing against the largest entry keeps entries that happen to be near zero from
    being judged by their own size.
    """
    got_array = as_array(case, got, what)
    if got_array.shape != expected.shape:
        fail(f"{what} has shape {got_array.shape}, expected {expected.shape}", case, got_array)
    bad = got_array[~np.isfinite(got_array)]
    if bad.size and np.all(np.isfinite(expected)):
        fail(f"{what} contains {bad.flat[0]}", case, got_array)
    bound = atol + rtol * float(np.max(np.abs(expected), initial=0.0))
    worst = np.abs(got_array.astype(np.float64) - expected.astype(np.float64))
    if np.max(worst, initial=0.0) > bound:
        at = np.unravel_index(int(np.argmax(worst)), worst.shape)
        place = f" at index {tuple(int(i) for i in at)}" if worst.ndim else ""
        values = f"got {got_array[at]:.6g}" + (f", expected {expected[at]:.6g}" if show_expected else "")
        fail(f"{what} is wrong{place}: {values}{'; ' + because if because else ''}", case, got_array)


def as_array(case: str, got: Any, what: str) -> np.ndarray:
    """`got` as a numeric numpy array; a tensor, a list or a number will do. Anything else fails the check."""
    if got is None:
        fail(f"{what} is None: does the function return it?", case, "None")
    try:
        array = np.asarray(got.detach().cpu() if hasattr(got, "detach") else got)
        if array.dtype == object or not np.issubdtype(array.dtype, np.number):
            raise TypeError
    except (TypeError, ValueError, RuntimeError):
        fail(f"{what} should be an array of numbers, got {type(got).__name__}", case, type(got).__name__)
    return array


class Bomb:
    """What a file may hold that somebody else has written: whoever unpickles it makes a folder."""

    def __init__(self, marker: str):
        self.marker = marker

    def __reduce__(self) -> tuple:
        return os.mkdir, (self.marker,)


def picture(ledger: Any) -> None:
    """If what follows fails, these messages are what the student should see; else all of the last launch."""
    _Launches.ledger = ledger


def count_of_ranks(world_size: int) -> str:
    """How many ranks, in words: "1 rank", "3 ranks"."""
    return f"{world_size} rank{'' if world_size == 1 else 's'}"


def apart_here(subject: Any) -> Any:
    """`subject`."""
    return subject


#: What `apart` does; grading in a jail puts something else here for as long as a grade cell runs.
apart_where = apart_here


def apart(subject: Any) -> Any:
    """A function or class of the submission's; in the jail that of another process, which has run the same cells.

    That process has seen nothing of what this test has given the submission, and cannot be told by it. Without a jail
    it is the same object.
    """
    return apart_where(subject)


def call_here(function: Callable, args: tuple) -> Any:
    """`function(*args)`."""
    return function(*args)


#: What `call_inside` does; grading in a jail puts something else here for as long as a grade cell runs.
call_where = call_here


def jailed() -> bool:
    """Does the submission run in a jail? Then only files in `tempfile`'s own folder are seen by both sides."""
    return call_where is not call_here


def call_inside(function: Callable, *args: Any) -> Any:
    """`function(*args)`, in the jail if the arguments mention a submission that runs there.

    For what does not cross its wall: what an object does to another one, gradients, who shares memory with whom. A
    function of a check that watches for this is sent there, and so is a class of one: what comes back is then an
    object whose methods are called there.
    """
    return call_where(function, args)


def run_ranks(worker: Callable, world_size: int, args: tuple, timeout: float = 20.0, recorded: bool = False) -> Any:
    """`ranks.run` for a check: a hang or a failing rank is a failed property, told with the number of ranks.

    recorded: all that the ranks have to tell each other goes through sends and receives, so that the ledger has it.
    Where a jail has measured what their network carried, the two are compared: a rank can write what it likes into
    its ledger, but can take nothing from what the system has counted.
    """
    import ranks
    from ranks import processes, source

    # Messages to students quote no line of a test or an oracle.
    source.HIDDEN.add(os.path.dirname(os.path.dirname(__file__)) + os.sep)
    _Launches.count += 1
    if _Launches.count > _Launches.most:
        raise _OutlivedError
    if worker.__module__.startswith("autograder."):
        processes.PRELOAD.add(worker.__module__)  # the drivers, which no rank needs to import anew
    case = count_of_ranks(world_size)
    picture(None)
    try:
        results = ranks.run(worker, world_size=world_size, args=args, timeout=timeout, echo=False)
        picture(results.ledger)
        if recorded:
            _expect_recorded(case, results)
        return results
    except ranks.RankError as error:
        if error.type_name == "NotImplementedError":
            raise
        where = f" ({error.where})" if error.where else ""
        raise CheckFailed(f"With {case}, {error.headline}{where}", case, error.evidence) from error
    except ranks.HangError as error:
        raise CheckFailed(f"With {case}, {error}", case, error.evidence) from error


#: The network may carry so many times what the ledger says, and so many bytes besides: packets have headers, ranks
#: connect and wait at barriers (0.9 MB for 8 ranks and 1900 messages), a worker may form groups of its own.
_CARRIED, _BESIDES = 1.5, 4 * 2**20


def _expect_recorded(case: str, results: Any) -> None:
    carried, sent = getattr(results, "carried", None), sum(results.ledger.bytes_sent())
    if carried is not None and not sent <= carried <= _CARRIED * sent + _BESIDES:
        text = f"the ledger says that the ranks sent {sent} bytes, their network carried {carried}"
        fail(f"{text}: send and receive with torch.distributed's functions", case, "unrecorded")


def expect_unchanged(case: str, before: Any, after: Any, *, what: str) -> None:
    """An input must still hold the bytes that it held before the call."""
    before, after = np.asarray(before), np.asarray(after)
    if before.dtype != after.dtype or before.tobytes() != after.tobytes():
        fail(f"{what} was changed in place: work on a copy", case, ("changed", what))


def expect_raises(case: str, function: Callable, *args: Any, error: type[Exception], mentions: str = "") -> None:
    """`function(*args)` must raise `error`, and its text must contain `mentions`."""
    try:
        function(*args)
    except error as raised:
        if mentions and mentions not in str(raised):
            fail(f"the {error.__name__} should name {mentions!r}, it says {str(raised)!r}", case, "unnamed")
    except NotImplementedError:
        raise
    except Exception as raised:
        fail(f"expected {error.__name__}, got {type(raised).__name__}: {raised}", case, type(raised).__name__)
    else:
        fail(f"expected {error.__name__}, but nothing was raised", case, "nothing raised")


def _failure(body: Callable, subjects: tuple, seed: int, most_launches: float = math.inf) -> CheckFailed | None:
    """Run a check's body; how it failed, or None. A student's prints and warnings stay out of the feedback."""
    _Launches.count, _Launches.most, _Launches.ledger = 0, most_launches, None
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            body(*subjects, rng=np.random.default_rng(seed))
    except CheckFailed as failure:
        failure.ledger = _Launches.ledger
        return failure
    except _OutlivedError:
        return None
    except Exception as error:
        # RankError carries the name of what was raised in the rank.
        if "NotImplementedError" in (type(error).__name__, getattr(error, "type_name", "")):
            return CheckFailed("This exercise is not written yet.", "not written", "not written")
        # `evidence` is set by ranks' own errors: what happened on each rank, without times and paths.
        got = getattr(error, "evidence", (type(error).__name__, str(error)))
        failure = CheckFailed(f"Your code raised {type(error).__name__}: {error}", "raised", got)
        failure.__cause__ = error
        return failure
    return None


def _matching_hints(exercise: str, body: Callable, seed: int, failure: CheckFailed) -> tuple[str, ...]:
    """The hints of the known wrong answers that fail this check, on these inputs, as the student's did."""
    from autograder.answers import mutants  # imports this module's names

    if failure.case == "not written" or _Shared.hinted not in (None, exercise):
        return ()
    launches = _Launches.count
    names = [p.name for p in inspect.signature(body).parameters.values() if p.kind is not p.KEYWORD_ONLY]
    hints = []
    for mutant in mutants.of_exercise(exercise):
        if _Shared.suspect not in (None, mutant.name):
            continue
        twin = _twin(exercise, body, names, mutant, seed, launches)
        if twin is not None and twin.case == failure.case and same_evidence(twin.got, failure.got):
            hints.append(mutant.hint)
    return tuple(hints[:MAX_HINTS])


def _twin(exercise: str, body: Callable, names: list[str], mutant: Any, seed: int, launches: int) -> CheckFailed | None:
    """How a known wrong answer fails a check on the inputs of `seed`, within so many launches; None if it does not."""
    from autograder.lessons import notebook

    key = (exercise, body.__name__, mutant.name)
    if _Shared.seed is not None and key in _Shared.twins:
        failure, took, allowed = _Shared.twins[key]
        if failure is not None or allowed >= launches:
            return failure if took <= launches else None
    space = notebook.functions(mutant.lesson, swap={mutant.cell: mutant.source})
    failure = _failure(body, tuple(space[name] for name in names), seed, launches)
    if _Shared.seed is not None:
        to_the_end = _Launches.count <= launches
        _Shared.twins[key] = (failure, _Launches.count, math.inf if to_the_end else launches)
    return failure


def same_evidence(a: Any, b: Any) -> bool:
    """Are two observations the same, numbers up to rounding? Arrays, numbers, strings, and lists of them."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_evidence(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(same_evidence(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        a, b = np.asarray(a), np.asarray(b)
        if a.shape != b.shape or not all(np.issubdtype(x.dtype, np.number) for x in (a, b)):
            return False
        scale = np.max(np.abs(b[np.isfinite(b)]), initial=0.0)
        return bool(np.allclose(a, b, rtol=1e-5, atol=1e-6 * scale, equal_nan=True))
    if isinstance(a, float) and isinstance(b, float):
        return bool(np.isclose(a, b, rtol=1e-5, equal_nan=True))
    return type(a) is type(b) and a == b
