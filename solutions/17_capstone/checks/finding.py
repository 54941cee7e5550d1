"""Lesson 17, exercise 1: the first wrong entry in the log of a run with a planted fault."""

from __future__ import annotations

import copy
import functools
import importlib.util
import math
from typing import Any

import numpy as np

from autograder.checks.check import check
from autograder.checks.expect import count_of_ranks, fail
from autograder.checks.inputs import seed as draw_seed
from autograder.lesson import notebook

from .common import LESSON, PIECES, run_ranks

FAULTS = "17-ex1-faults"
STEPS = 8


def _load_faults() -> Any:
    """The recorder that students get, from the solutions' folder."""
    spec = importlib.util.spec_from_file_location(
        "autograder.checks.capstone_faults", notebook.SOLUTIONS / LESSON / "files" / "faults.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


#: Loaded here, so that the ranks, which are forked from a process that has imported this module, need not.
RECORDER = _load_faults()


@functools.cache
def _tools() -> dict[str, Any]:
    """What the recorder trains with: the solution's functions and the reference pieces."""
    functions = notebook.functions(LESSON)
    tools = {name: functions[name] for name in ("build_model", "make_corpus", "make_batch", "cross_entropy")}
    return {**tools, "ZeroOptimizer": PIECES.ZeroOptimizer, "broadcast_parameters": PIECES.broadcast_parameters}


def _record(rank: int, world_size: int, tools: dict, seed: int, plants: list) -> list[list[dict]]:
    tools = {**tools, "ZeroOptimizer": PIECES.ZeroOptimizer, "broadcast_parameters": PIECES.broadcast_parameters}
    return [RECORDER.record(rank, world_size, tools, seed, STEPS, plant) for plant in plants]


def _logs(world_size: int, seed: int, plants: tuple) -> tuple[list, list]:
    """(for each plant the log of a run with it, the reference): runs in which no answer of a student takes part."""
    tools = {name: tool for name, tool in _tools().items() if name not in ("ZeroOptimizer", "broadcast_parameters")}
    results = run_ranks(_record, world_size, (tools, seed, list(plants)))
    logs = [[mine[number] for mine in results] for number in range(len(plants))]
    return logs, RECORDER.alone(_tools(), world_size, seed, STEPS)


def _expect_found(find_fault: Any, case: str, log: list, reference: list, want: tuple | None) -> None:
    got = find_fault(copy.deepcopy(log), copy.deepcopy(reference))
    if isinstance(got, (tuple, list)) and len(got) == 3:
        got = tuple(int(part) if isinstance(part, (int, np.integer)) else part for part in got)
    if got != want:
        near = [str(got)] if got is None or want is None else [_off(a, b) for a, b in zip(got, want, strict=True)]
        fail(f"find_fault returned {got!r}, expected {want!r}", case, near if isinstance(got, tuple) else [str(got)])


def _off(got: Any, want: Any) -> Any:
    """By how much a number is off; the word that stands in the place of another."""
    return got - want if isinstance(got, int) and isinstance(want, int) else (str(got), got == want)


def _plants(rng: np.random.Generator, world_size: int) -> list[tuple[str, int, int]]:
    """As the recorder's `six`, but from numbers that nobody can draw again who finds the seed of a log's batches."""
    kinds = [RECORDER.KINDS[i] for i in rng.permutation(len(RECORDER.KINDS))]
    return [(kind, int(rng.integers(3, STEPS - 1)), int(rng.integers(world_size))) for kind in kinds]


def _expect_planted(find_fault: Any, kinds: tuple[str, ...], rng: np.random.Generator) -> None:
    """Faults of these kinds, each on a rank of its own choice, are found in real runs."""
    for world_size in (3, 4):
        plants = [(kind, int(rng.integers(3, STEPS - 1)), int(rng.integers(1, world_size))) for kind in kinds]
        # On rank 0 too, but not where the ranks' parameters are compared, which the most frequent digest decides.
        plants += [(kind, int(rng.integers(3, STEPS - 1)), 0) for kind in kinds if kind != "copy"][:1]
        plants = [plants[number] for number in rng.permutation(len(plants))]
        logs, reference = _logs(world_size, draw_seed(rng), tuple(plants))
        for (kind, step, rank), log in zip(plants, logs, strict=True):
            case = f"{count_of_ranks(world_size)}, {kind} in step {step} on rank {rank}"
            _expect_found(find_fault, case, log, reference, (step, rank, RECORDER.SHOWN_BY[kind]))


@check(FAULTS, points=1.25)
def faults_of_one_rank_are_found(find_fault, *, rng):
    """In real runs, lost moments, a wrong rate and a changed copy are found: in that step, one rank alone is wrong."""
    _expect_planted(find_fault, ("moments", "rate", "copy"), rng)


@check(FAULTS, points=0.75)
def faults_that_spread_are_found(find_fault, *, rng):
    """In real runs, a flipped bit, a wrong batch and a doubled gradient, which make other ranks' updates wrong too."""
    _expect_planted(find_fault, ("bit", "batch", "gradient"), rng)


def _changed(log: list, *changes: tuple[int, int, str, Any]) -> list:
    """A copy in which (rank, step, what) has another value; a number is multiplied."""
    log = copy.deepcopy(log)
    for rank, step, what, value in changes:
        row = log[rank][step - 1]
        row[what] = row[what] * value if isinstance(row[what], float) else value
    return log


def _scaled(log: list, factor: float) -> list:
    """A copy with all norms times a factor."""
    norms = ("gradient", "update")
    return [[{**row, **{name: row[name] * factor for name in norms}} for row in rows] for rows in log]


def _made_up(world_size: int, rng: np.random.Generator) -> tuple[list, list]:
    """(a healthy log, its reference), of drawn digests and norms, the same in both: rounding is judged in real runs."""

    def drawn() -> str:
        return rng.bytes(6).hex()

    log: list[list[dict]] = [[] for _ in range(world_size)]
    reference: list[list[dict]] = [[] for _ in range(world_size)]
    parameters, states = drawn(), [drawn() for _ in range(world_size)]
    for _ in range(STEPS):
        after = drawn()
        for rank in range(world_size):
            norms = {"loss": 4.0, "gradient": float(rng.uniform(0.5, 2)), "update": float(rng.uniform(0.1, 0.5))}
            one = {"batch": drawn(), **norms}
            reference[rank].append(one)
            row = {"parameters_in": parameters, **one, "state_in": states[rank]}
            states[rank] = drawn()
            log[rank].append({**row, "state_out": states[rank], "parameters_out": after})
        parameters = after
    return log, reference


def _expect_first(find_fault: Any, cases: dict[str, tuple[list, tuple]], log: list, reference: list) -> None:
    """Of each log with changes, this entry is the first that is wrong."""
    for case, (changes, want) in cases.items():
        _expect_found(find_fault, case, _changed(log, *changes), reference, want)


@check(FAULTS, points=0.5)
def the_first_moment_counts(find_fault, *, rng):
    """Of several wrong entries the first counts: by step, then in the table's order, then by rank."""
    healthy, reference = _made_up(4, rng)
    s = int(rng.integers(3, STEPS - 1))
    cases: dict[str, tuple[list, tuple]] = {
        "one rank's batch and a lower rank's gradient": (
            [(3, s, "batch", "x"), (0, s, "gradient", 2.0)],
            (s, 3, "batch"),
        ),
        "two ranks' updates": ([(2, s, "update", 3.0), (1, s, "update", 3.0)], (s, 1, "update")),
        "an update, and parameters before it on a later step": (
            [(1, s, "update", 2.0), (0, s + 1, "parameters_in", "x")],
            (s, 1, "update"),
        ),
        "a copy that stays changed": (
            [(2, s, "parameters_out", "x"), (2, s + 1, "parameters_in", "x")],
            (s, 2, "parameters_out"),
        ),
        "all ranks change at once": ([(r, s, "parameters_in", "x") for r in range(4)], (s, 0, "parameters_in")),
        "the last step": ([(1, STEPS, "parameters_out", "x")], (STEPS, 1, "parameters_out")),
    }
    _expect_first(find_fault, cases, healthy, reference)


@check(FAULTS, points=0.75)
def most_ranks_are_right(find_fault, *, rng):
    """In step 1 and after every step, the digest of most ranks is right; in a tie, that of the lowest rank."""
    healthy, reference = _made_up(4, rng)
    s = int(rng.integers(3, STEPS - 1))
    cases: dict[str, tuple[list, tuple]] = {
        "rank 2 begins with another model": ([(2, 1, "parameters_in", "x")], (1, 2, "parameters_in")),
        "rank 0 begins with another model": ([(0, 1, "parameters_in", "x")], (1, 0, "parameters_in")),
        "rank 0 ends a step with other parameters": ([(0, s, "parameters_out", "x")], (s, 0, "parameters_out")),
        "two of four ranks begin with another model": (
            [(1, 1, "parameters_in", "x"), (2, 1, "parameters_in", "x")],
            (1, 1, "parameters_in"),
        ),
        "a batch in the first step": ([(1, 1, "batch", "x")], (1, 1, "batch")),
    }
    _expect_first(find_fault, cases, healthy, reference)
    two, of_one = _made_up(2, rng)
    for rank in range(2):
        for what, step in (("parameters_in", 1), ("parameters_out", s)):
            # Digests before and after the other rank's, so that no order of the digests is that of the ranks.
            for digest in ("", "z"):
                case = f"2 ranks, {what} of rank {rank} is another digest"
                _expect_found(find_fault, case, _changed(two, (rank, step, what, digest)), of_one, (step, 1, what))


@check(FAULTS, points=0.5)
def norms_that_are_off_are_wrong(find_fault, *, rng):
    """A norm that is nan, 0, or off by more than 0.1 % of the reference, however small that is, is wrong."""
    healthy, reference = _made_up(4, rng)
    s = int(rng.integers(3, STEPS - 1))
    cases: dict[str, tuple[list, tuple]] = {
        "a gradient that is nan": ([(2, s, "gradient", math.nan)], (s, 2, "gradient")),
        "an update of 0": ([(3, s, "update", 0.0)], (s, 3, "update")),
        "a gradient that is 0.3 % too small": ([(1, s, "gradient", 0.997)], (s, 1, "gradient")),
    }
    _expect_first(find_fault, cases, healthy, reference)
    # Of norms this small, 1 % is far below any fixed number that a bound could be.
    small = _changed(_scaled(healthy, 1e-6), (2, s, "gradient", 1.01))
    case, want = "norms of about 1e-6, one of them 1 % too large", (s, 2, "gradient")
    _expect_found(find_fault, case, small, _scaled(reference, 1e-6), want)


@check(FAULTS, points=0.25)
def a_healthy_run_is_not_accused(find_fault, *, rng):
    """A run that differs from one process by rounding alone has no fault, on any number of ranks."""
    for world_size in (1, 2, 5):
        [log], reference = _logs(world_size, draw_seed(rng), (None,))
        _expect_found(find_fault, f"{count_of_ranks(world_size)}, no fault", log, reference, None)
        nearly = _changed(log, (0, 3, "gradient", 1.0004), (world_size - 1, 5, "update", 0.9996))
        _expect_found(find_fault, f"{count_of_ranks(world_size)}, 0.04 % off", nearly, reference, None)
        wrong = _changed(log, (0, 3, "update", 2.0))
        _expect_found(find_fault, f"{count_of_ranks(world_size)}, an update", wrong, reference, (3, 0, "update"))
        # Of norms this large, 0.04 % is far above any fixed number that a bound could be.
        case = f"{count_of_ranks(world_size)}, norms of about 1e6, 0.04 % off"
        _expect_found(find_fault, case, _scaled(nearly, 1e6), _scaled(reference, 1e6), None)
