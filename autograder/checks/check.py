"""What a check is: a property of a student's functions, tried on fresh inputs, that names the mistake.

A check is an ordinary function over the student's objects, decorated with the exercise it grades::

    @check("03-ex1-worker-gradient", points=2)
    def worker_gradient_follows_the_formula(worker_gradient, *, rng):
        x, y, w = ...                                   # fresh inputs, drawn from rng
        got = worker_gradient(x, y, w)                  # run the student's function
        expect_close("B = 3, d = 4", got, oracle(...), what="the gradient", rtol=1e-9)

A check that tries several cases, or starts ranks, yields them (`cases`), and compares nothing by itself.

Its positional parameters carry the notebook's names. That is what makes hints possible: when the property
fails, the same check is run once more, with the same inputs, on every known wrong answer to that exercise
(`answers.wrong`), and the hints of those that fail *in the same way, with the same evidence* are added
to the message (`hints`).

Each failure carries the seed of its inputs. The environment variable AUTOGRADER_SEED sets the seed of every check, and
so repeats a failure; `autograder retry` does that for a graded submission.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
import inspect
import io
import os
import re
import secrets
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from autograder.checks import faults, hints
from autograder.checks.cases import Call, Case, CaseError, play
from autograder.checks.expect import DIED, HANG, RAISED, UNWRITTEN, WRONG, CheckFailed
from autograder.checks.stage import Launches, LaunchesExceeded, counted
from autograder.lesson import notebook

#: Names the environment variable that sets the seed of every check.
SEED = "AUTOGRADER_SEED"

#: Why a check may try the same each time (`check(…, fixed=…)`).
REFUSALS = "the statement names all arguments that make no sense; those that do are drawn in the core"
MEMORY = "what is judged is memory, and numbers are drawn in the core"
EVENTS = "what is judged is the order of events in a run, and numbers are drawn in the core"

#: What a check says of a stub.
NOT_WRITTEN_YET = "This exercise is not written yet."

#: What a student reads where the check itself stopped, perhaps because of what the student's code gave.
CANNOT_JUDGE = (
    "The test could not judge what your code gave, and stopped with {}; if this has the form that the statement asks "
    "for, tell your instructor"
)


@dataclass(frozen=True)
class Check:
    """A check as its decorator declares it.

    exercise: the grade_id of the solution cell. points: its share of the exercise's points, 0 for a veto. veto: does an
    answer that fails it earn nothing (`autograder.properties`)? run: tries it on a student's objects. fixed: why it
    draws nothing, "" for one that does.
    """

    exercise: str
    points: float
    veto: bool
    run: Callable[..., None]
    fixed: str = ""

    @property
    def name(self) -> str:
        """The function's name, a sentence about a right answer."""
        return self.run.__name__

    @property
    def parameters(self) -> list[str]:
        """The names of the student's functions and classes that it takes, in order."""
        parameters = inspect.signature(self.run).parameters.values()
        return [one.name for one in parameters if one.kind is not one.KEYWORD_ONLY]

    @property
    def sentence(self) -> str:
        """What it tests: the first line of its docstring. ValueError for a check that has none."""
        text = (self.run.__doc__ or "").strip()
        if not text:
            raise ValueError(f"{self.place}: {self.name} needs a docstring whose first line says what it checks")
        return text.split("\n")[0]

    @property
    def draws(self) -> bool:
        """Does its body use `rng`?"""
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(self.run))))
        return any(isinstance(node, ast.Name) and node.id == "rng" for node in ast.walk(tree))

    @property
    def lesson(self) -> str:
        """The lesson in whose checks it stands: "08_zero1" for one in `autograder.checks.08_zero1.checks.step`."""
        return self.run.__module__.removeprefix("autograder.checks.").split(".")[0]

    @property
    def position(self) -> tuple[str, int]:
        """Its module and its line."""
        return self.run.__module__, inspect.unwrap(self.run).__code__.co_firstlineno

    @property
    def place(self) -> str:
        """Where it stands, as `path:line`."""
        path = Path(inspect.unwrap(self.run).__code__.co_filename)
        inside = path.is_relative_to(notebook.ROOT)
        return f"{path.relative_to(notebook.ROOT) if inside else path}:{self.position[1]}"


#: Every check that has been defined, by its module and its name.
REGISTERED: dict[tuple[str, str], Check] = {}


def check(exercise: str, points: float = 0.0, *, veto: bool = False, fixed: str = "") -> Callable[[Callable], Callable]:
    """Make a function a check of `exercise`, the grade_id of its solution cell.

    The function takes the student's objects by position, and draws its inputs from `rng`. It yields cases, or compares
    by itself. Whatever it raises reaches the caller as one `CheckFailed` whose text is meant for the student; but a
    check that is wrong itself raises CaseError.

    points: its share of the exercise's points. veto: it has none, and an answer that fails it earns nothing, because
    only a trick fails it. fixed: why it draws nothing and takes no rng, such as REFUSALS; what a check tries each time
    the same, a student who hands in again and again can read from the feedback and write into a table. ValueError, in
    one line, for a check with neither points nor veto, or both.
    """

    def decorate(body: Callable) -> Callable:
        @functools.wraps(body)
        def run(*subjects: Any) -> None:
            seed, launches = fresh_seed(), Launches()
            failed = attempt(body, subjects, seed, launches)
            if failed is None:
                return
            told = copy.copy(failed)  # another exception, without what its frames hold
            failure = replace(failed.failure, check=body.__name__)
            told.seed, told.failure = seed, failure
            if failure.kind != UNWRITTEN and not failure.fault:  # a check's own mistake fails all answers alike
                of_exercise = [one for one in REGISTERED.values() if one.exercise == exercise]
                core = max(of_exercise, key=lambda one: one.points, default=declared).name
                told.find_hints = functools.partial(
                    hints.matching, exercise, body, seed, told.compared, attempt, launches.count, core=core
                )
            if told.find_hints and not hints.grading().later:
                told.failure = replace(failure, hints=list(told.find_hints()))
            raise told from failed.__cause__

        declared = Check(exercise, points, veto, run, fixed)
        _refuse(declared)
        REGISTERED[body.__module__, body.__name__] = declared
        return run

    return decorate


def _refuse(one: Check) -> None:
    """ValueError for a check whose points make no sense, or that neither takes `rng` nor says why."""
    start = f"{one.place}: {one.name}"
    rng = inspect.signature(one.run).parameters.get("rng")
    if not one.fixed and (rng is None or rng.kind is not rng.KEYWORD_ONLY):
        raise ValueError(f"{start} draws nothing: write `*, rng` at the end and draw from it, or say why not (fixed=…)")
    if one.fixed and rng is not None:
        raise ValueError(f"{start} takes rng, and says why it draws nothing (fixed=…): leave one of them out")
    if not isinstance(one.points, (int, float)) or one.points < 0:
        raise ValueError(f"{start} has points={one.points!r}: write a number above 0, in quarters of a point")
    if one.veto and one.points:
        raise ValueError(f"{start} has veto=True, so it has no points of its own: leave out points={one.points:g}")
    if not (one.veto or one.points):
        raise ValueError(f"{start} has no points: write @check(…, points=0.5), or veto=True if only a trick fails it")


def fresh_seed() -> int:
    """The seed for a check: what AUTOGRADER_SEED says, else the one that this process shares, else a new one.

    ValueError when AUTOGRADER_SEED is no whole number, or negative.
    """
    said = os.environ.get(SEED)
    if said is not None:
        return read_seed(said)
    shared = hints.grading().seed
    return secrets.randbits(64) if shared is None else shared


def read_seed(text: str) -> int:
    """A seed from its text; ValueError, in one line, for anything but a whole number that is not negative."""
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{SEED} must be a whole number, 0 or more, got {text!r}")
    return int(text)


def share_inputs() -> None:
    """From now on all checks of this process draw the same inputs, fresh in each process.

    A process that grades many answers then runs the known wrong answers, which the hints need, once on these
    inputs and not again for each answer.
    """
    said, grading = os.environ.get(SEED), hints.grading()
    grading.seed = secrets.randbits(64) if said is None else read_seed(said)
    grading.known_failures.clear()


def attempt(body: Callable, subjects: tuple, seed: int, launches: Launches | None = None) -> CheckFailed | None:
    """Run a check's body; how it failed, or None. A student's prints and warnings stay out of the feedback.

    launches: bounds and counts them. CaseError if the check's own cases are wrong. A failure by an error of the check's
    own code has a `fault`.
    """
    launches = launches or Launches()
    quiet = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    try:
        with counted(launches), quiet[0], quiet[1]:
            names = inspect.signature(body).parameters
            cases = body(*subjects, **({"rng": np.random.default_rng(seed)} if "rng" in names else {}))
            if inspect.isgenerator(cases):
                play(cases, {id(one): name for one, name in zip(subjects, names, strict=False)})
            elif isinstance(cases, (Case, Call, list)):
                raise CaseError(f"{body.__module__}.{body.__name__} returns its cases: yield them")
    except CaseError:
        raise
    except CheckFailed as failed:
        failed.ledger = launches.ledger
        return failed
    except LaunchesExceeded:
        return None
    except Exception as error:
        # RankError carries the name of what was raised in the rank.
        kind = type(error).__name__
        if "NotImplementedError" in (kind, getattr(error, "type_name", "")):
            return CheckFailed(NOT_WRITTEN_YET, kind=UNWRITTEN)
        # `evidence` is set by ranks' own errors: what happened on each rank, without times and paths.
        got = getattr(error, "evidence", (kind, str(error)))
        # An error is the same mistake in whatever case it comes.
        text, became = f"Your code raised {kind}: {error}", _what_became_of(error)
        if fault := faults.of_check(error, body, subjects):
            text, became = CANNOT_JUDGE.format(f"{kind}: {error}"), (WRONG, "")
        raised = CheckFailed(text, _case_of(error), got, *became, ("raised", got), fault)
        raised.__cause__ = error
        return raised
    return None


def _what_became_of(error: Exception) -> tuple[str, str]:
    """The kind of failure that an error from the student's code shows, and the class of what was raised first."""
    from ranks.errors import HangError, RankError

    if isinstance(error, RankError):  # the answer starts ranks itself
        return (RAISED, error.type_name) if error.type_name else (DIED, "")
    return (HANG, "") if isinstance(error, HangError) else (RAISED, type(error).__name__)


#: The modules whose functions call what they try `case`: those of the lessons' checks, and `cases`.
_TRYING = re.compile(r"autograder\.checks\.(\d|cases$)")


def _case_of(error: BaseException) -> str:
    """The case that a check was trying when an error came out of the student's code: what it calls `case`; else ''."""
    found, trace = "", error.__traceback__
    while trace is not None:
        if _TRYING.match(trace.tb_frame.f_globals.get("__name__", "")):
            case = trace.tb_frame.f_locals.get("case")
            name = case if isinstance(case, str) else getattr(case, "name", "")
            found = name if isinstance(name, str) and name else found
        trace = trace.tb_next
    return found
