"""What the checks of lesson 01 share: inputs, one launch for many cases, and what a ledger has to say.

Every function is launched once for each number of ranks and tried there on many inputs. What was sent is read from
the ledger; barriers that the driver calls separate one case from the next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checking.expect import count_of_ranks, each_rank, expect_unchanged, fail
from autograder.checking.inputs import seed
from autograder.checking.replay import Recording, expect_same_alone, run_recorded
from autograder.checking.stage import apart, picture, run_ranks
from ranks.ledger import Ledger

#: Powers of two, other numbers, one rank alone, and enough ranks for a tree of three rounds.
WORLD_SIZES = (1, 2, 3, 4, 5, 8)
OTHER_DTYPES = ("float32", "int64")
#: Some lengths are divided by no N above 1, others by some N, and 840 by every N; 0 and 1 leave ranks without a chunk.
LENGTHS = (0, 1, 3, 7, 12, 1003, 840)
#: A tensor with more numbers than this comes back from its rank as a `Digest`.
_MOST_NUMBERS = 100_000
#: A digest holds every 997th number. Large inputs repeat after 4099 numbers. Both are primes, so that no two chunks of
#: a large tensor look alike.
_STEP, _PERIOD = 997, 4099
#: (most, unit): values are at most `most` times `unit` in size, and multiples of `unit`. Only their own dtype adds them
#: exactly: float32 is too coarse for the sums of float64, and float64 for those of int64.
_RANGE = {"float32": (2**12, 2.0**-8), "float64": (2**48, 2.0**-40), "int64": (2**59, 1)}


@dataclass(frozen=True)
class Case:
    """One call: rank r passes `inputs[r]`, as a tensor, and then the arguments in `extra`."""

    name: str
    inputs: Sequence[np.ndarray]
    extra: tuple = ()
    layout: str = ""  # "transposed", "strided", or "mixed", transposed on odd ranks: such views are not contiguous

    @property
    def world_size(self) -> int:
        """How many ranks take part."""
        return len(self.inputs)

    def seen(self, array: np.ndarray) -> np.ndarray:
        """An array as the ranks see it, which is transposed in two layouts."""
        return array.T if self.layout in ("transposed", "mixed") else array


@dataclass(frozen=True)
class Digest:
    """What is known of a large tensor: its shape and dtype, some of its numbers, and a hash of all of them."""

    shape: tuple[int, ...]
    dtype: np.dtype
    some: np.ndarray
    hash: str


@dataclass
class Outcome:
    """What one rank returned in one case, and what its tensors held."""

    result: np.ndarray | Digest | None  # what the function returned, read after all cases had run
    after: np.ndarray | Digest  # the input, after the call
    fresh: bool  # does the result share no memory with the input or an earlier result?
    error: tuple[str, str] | None = None  # the exception's type and text


@dataclass
class Trial:
    """A case, the outcome on each rank, and the messages that the ranks sent and received."""

    case: Case
    outcomes: list[Outcome]
    ledger: Ledger


# ---- running ----


def _drive(rank: int, world_size: int, function: Any, cases: list[Case]) -> list[Outcome]:
    """Inside a rank: one call for each case, with a barrier before and after each."""
    kept, outcomes = [], []
    for case in cases:
        x = _laid_out(torch.from_numpy(case.inputs[rank].copy()), case.layout, rank)
        callers = x.detach()  # the caller's memory, even if the function gives `x` other memory
        dist.barrier()
        try:
            result, error = function(x, *case.extra), None
        except ValueError as raised:
            result, error = None, (type(raised).__name__, str(raised))
        result = result if isinstance(result, torch.Tensor) else None
        own_memory = result is None or _own_memory(result, [callers, *kept])
        outcomes.append(Outcome(None, content(callers.numpy()), own_memory, error))
        kept.append(result)
    dist.barrier()
    for outcome, result in zip(outcomes, kept, strict=True):
        outcome.result = None if result is None else content(result.numpy())
    return outcomes


def content(array: np.ndarray) -> np.ndarray | Digest:
    """A copy of an array, or the digest of a large one: megabytes take long on their way out of a jail."""
    if array.size <= _MOST_NUMBERS:
        return array.copy()
    numbers = np.ascontiguousarray(array).reshape(-1) + 0  # the zero has no sign then
    return Digest(array.shape, array.dtype, numbers[::_STEP].copy(), hashlib.blake2b(numbers).hexdigest())


def _laid_out(x: torch.Tensor, layout: str, rank: int) -> torch.Tensor:
    if layout == "strided":
        return x.repeat_interleave(2)[::2]
    if layout == "mixed":
        return x.t() if rank % 2 else x.t().contiguous()
    return x.t() if layout == "transposed" else x


def _own_memory(tensor: torch.Tensor, others: list[torch.Tensor | None]) -> bool:
    pointer = tensor.untyped_storage().data_ptr()
    taken = (other for other in others if other is not None and other.numel())
    return not tensor.numel() or all(other.untyped_storage().data_ptr() != pointer for other in taken)


def run_cases(function: Any, cases: list[Case]) -> list[Trial]:
    """One launch that runs all cases, which are for the same number of ranks."""
    results = run_ranks(_drive, cases[0].world_size, (function, cases), recorded=True)
    return _trials(cases, results, results.ledger)


def _trials(cases: list[Case], outcomes: Sequence[list[Outcome]], ledger: Ledger) -> list[Trial]:
    """The trial of each case; rank r's outcomes are `outcomes[r]`."""
    world_size = cases[0].world_size
    trials = [
        Trial(case, [mine[c] for mine in outcomes], Ledger(world_size=world_size)) for c, case in enumerate(cases)
    ]
    for rank in range(world_size):
        parts = ledger.of(rank).between_barriers()
        for message in (message for part in parts for message in part):
            if message.is_collective:
                fail(f"{message.call} was called, but only send and receive are allowed", "collective", message.call)
        if len(parts) != len(cases) + 2:
            fail("barrier was called, but only send and receive are allowed", "collective", "barrier")
        for trial, part in zip(trials, parts[1:-1], strict=True):
            trial.ledger.extend(part)
    return trials


def run_cases_alone(function: Any, cases: list[Case], rng: np.random.Generator) -> list[Trial]:
    """As `run_cases`, with one case for each rank; then rank r does its part of case r again, without the others."""
    world_size = len(cases)
    outcomes, sent, ledger = run_recorded(_drive, world_size, (function, cases))
    trials, queues = _trials(cases, outcomes, ledger), [iter(mine) for mine in sent]
    other, recordings = apart(function), []
    for rank, trial in enumerate(trials):
        of_case = [[next(queue) for _ in trial.ledger.of(r).sends()] for r, queue in enumerate(queues)]
        given = [numbers(rng, x.shape, str(x.dtype)) for x in trial.case.inputs]
        given[rank] = trial.case.inputs[rank]
        recordings.append(Recording(rank, (other, [replace(trial.case, inputs=given)]), of_case, trial.ledger))
    for rank, (outcome,) in enumerate(expect_same_alone(_drive, world_size, recordings)):
        before, name = trials[rank].outcomes[rank], trials[rank].case.name
        if not (np.array_equal(outcome.result, before.result) and np.array_equal(outcome.after, before.after)):
            text = f"rank {rank}'s result changes when the rank works alone, from its own input and the messages that"
            fail(f"{text} it was sent", name, "not alone")
    return trials


# ---- inputs ----


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Random numbers whose sum over 8 ranks is exact in `dtype`."""
    most, unit = _RANGE[dtype]
    return np.asarray(rng.integers(-most, most, shape) * unit, dtype)


def vectors(rng: np.random.Generator, world_size: int, numel: int, dtype: str) -> list[np.ndarray]:
    return [numbers(rng, (numel,), dtype) for _ in range(world_size)]


def vector_cases(rng: np.random.Generator, world_size: int) -> list[Case]:
    """1-D inputs: all lengths in float64, two in the other dtypes; for 5 ranks and more, two lengths in float64."""
    kinds = [(numel, "float64") for numel in (LENGTHS if world_size <= 4 else (3, 1003))]
    kinds += [(numel, dtype) for numel in (7, 12) for dtype in OTHER_DTYPES if world_size <= 4]
    those = count_of_ranks(world_size)
    names = [f"{those}, {numel} number{'s' if numel != 1 else ''}, {dtype}" for numel, dtype in kinds]
    plain = [Case(name, vectors(rng, world_size, *kind)) for name, kind in zip(names, kinds, strict=True)]
    return [*plain, strided_case(rng, world_size)]


def strided_case(rng: np.random.Generator, world_size: int) -> Case:
    """Every other element of a vector."""
    name = f"{count_of_ranks(world_size)}, 7 numbers, strided"
    return Case(name, vectors(rng, world_size, 7, "float64"), layout="strided")


def shaped_cases(rng: np.random.Generator, world_size: int) -> list[Case]:
    """Inputs of several shapes, one of them not contiguous, on all ranks or on some: all in float32, two in int64.

    For 5 ranks and more, no case.
    """
    if world_size > 4:
        return []
    shapes = [((), ""), ((4, 3), "transposed"), ((4, 3), "mixed"), ((2, 3, 4), ""), ((5, 1), ""), ((0, 3), "")]
    cases = []
    for dtype, tried in (("float32", shapes), ("int64", shapes[:2])):
        for shape, layout in tried:
            which = {"": "", "transposed": "transposed ", "mixed": "on odd ranks transposed "}[layout]
            name = f"{count_of_ranks(world_size)}, {which}shape {shape}, {dtype}"
            cases.append(Case(name, [numbers(rng, shape, dtype) for _ in range(world_size)], layout=layout))
    return cases


def cases_of_4(rng: np.random.Generator) -> list[Case]:
    """One case for each of 4 ranks; a message holds enough numbers for its header not to count."""
    return [Case(f"4 ranks, 1003 numbers, float64 ({rank})", vectors(rng, 4, 1003, "float64")) for rank in range(4)]


@dataclass(frozen=True)
class _Drawn(Sequence):
    """A large vector for each of 4 ranks. Each rank draws its own from the seed, so that nobody has to send it."""

    seed: int
    numel: int
    dtype: str

    def __len__(self) -> int:
        return 4

    def __getitem__(self, rank: int) -> np.ndarray:
        if not 0 <= rank < 4:
            raise IndexError(rank)
        return np.resize(numbers(np.random.default_rng([self.seed, rank]), (_PERIOD,), self.dtype), self.numel)


@dataclass(frozen=True)
class Chunks(Sequence):
    """Rank r's chunk of the vector that rank 0 has."""

    vectors: Sequence[np.ndarray]

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, rank: int) -> np.ndarray:
        return np.array_split(self.vectors[0], len(self.vectors))[rank]


def megabytes(rng: np.random.Generator, world_size: int) -> list[Case]:
    """With 4 ranks, 2.4 MB: what a network adds to that is negligible. With another number of ranks, no case."""
    if world_size != 4:
        return []
    return [Case("4 ranks, 300001 numbers, float64", _Drawn(seed(rng), 300_001, "float64"))]


def large_case(rng: np.random.Generator, world_size: int, **extra: int) -> list[Case]:
    """With 4 ranks, 8 MB, far more than a socket's buffer holds; with another number of ranks, no case."""
    if world_size != 4:
        return []
    name = ", ".join(["4 ranks, 8 MB, float32", *(f"{key} = {value}" for key, value in extra.items())])
    return [Case(name, _Drawn(seed(rng), 2 * 2**20, "float32"), tuple(extra.values()))]


# ---- properties ----


def expect_values(trial: Trial, of_rank: Any, in_place: bool) -> None:
    """Nothing was raised, and rank r's tensor, or what rank r returned, is `of_rank(r)`, bit for bit."""
    case = trial.case
    picture(trial.ledger)
    for rank, outcome in enumerate(trial.outcomes):
        if outcome.error:
            kind, text = outcome.error
            fail(f"rank {rank} raised {kind}: {text}", case.name, outcome.error, kind)
    held = [outcome.after if in_place else outcome.result for outcome in trial.outcomes]
    for rank, got in each_rank(case.name, held, evidence=_start):
        expected = content(of_rank(rank.rank))
        if got is None:
            rank.fail("no tensor came back: does the function return one?", "None")
        if got.dtype != expected.dtype:
            rank.fail(f"the result is {got.dtype}, expected {expected.dtype}", str(got.dtype))
        rank.expect(got.shape == expected.shape, f"the result has shape {got.shape}, expected {expected.shape}")
        (mine, step), (right, _) = _known(got), _known(expected)
        wrong = np.flatnonzero(mine != right)
        if wrong.size:
            at = int(wrong[0])
            values = f"element {at * step} is {mine[at]}, expected {right[at]}"
            looked_at = "elements" if step == 1 else "elements that were looked at"
            rank.fail(f"the result is wrong in {wrong.size} of {mine.size} {looked_at}: {values}")
        if isinstance(got, Digest):
            rank.expect(got.hash == expected.hash, "the result is wrong in some of its elements")


def _known(array: np.ndarray | Digest) -> tuple[np.ndarray, int]:
    """The elements of an array that are known, and how far they are apart."""
    return (array.some, _STEP) if isinstance(array, Digest) else (array.reshape(-1), 1)


def _start(array: np.ndarray | Digest | None) -> Any:
    """Some elements, few enough to be compared quickly."""
    return "None" if array is None else _known(array)[0][:2048]


def sum_of(case: Case) -> np.ndarray:
    return case.seen(np.asarray(np.sum(list(case.inputs), axis=0, dtype=case.inputs[0].dtype)))


def expect_fresh(trial: Trial) -> None:
    """The input keeps its numbers, and the result shares no memory with it or an earlier result."""
    for rank, outcome in enumerate(trial.outcomes):
        before, after = (
            held.hash if isinstance(held, Digest) else held
            for held in (content(trial.case.inputs[rank]), outcome.after)
        )
        expect_unchanged(trial.case.name, before, after, what="the input")
        if not outcome.fresh:
            fail("the result shares its memory with an input or an earlier result", trial.case.name, "shared")


def expect_neighbors(trial: Trial, most: int) -> None:
    """Each rank sends at most `most` messages, and only to ranks next to it on the ring."""
    world_size = trial.case.world_size
    for rank, count in enumerate(trial.ledger.messages_sent()):
        neighbors = {(rank + 1) % world_size, (rank - 1) % world_size}
        for message in trial.ledger.of(rank):
            if message.peer not in neighbors:
                verb = "sent to" if message.is_send else "received from"
                got = [sorted({m.peer for m in trial.ledger.of(r)}) for r in range(world_size)]
                fail(f"rank {rank} {verb} rank {message.peer}, which is not its neighbor", trial.case.name, got)
        if count > most:
            text = f"rank {rank} sent {count} messages, expected at most {most}"
            fail(text, trial.case.name, trial.ledger.messages_sent())


def expect_sent(trial: Trial, *allowed: list[int]) -> None:
    """Each rank sent exactly this number of bytes; there are two lists where the ring may turn either way."""
    sent = trial.ledger.bytes_sent()
    if sent not in allowed:
        fail(f"the ranks sent {sent} bytes, expected {allowed[0]}", trial.case.name, sent)


def expect_received(trial: Trial) -> None:
    """Every rank but the source received at least as many bytes as the source's tensor has."""
    needed = trial.case.inputs[0].nbytes
    for rank in range(trial.case.world_size):
        got = sum(message.bytes for message in trial.ledger.of(rank) if message.is_receive)
        if rank != trial.case.extra[0] and got < needed:
            text = f"rank {rank} received {got} bytes, but holds the source's {needed} bytes: send and receive them"
            fail(text, trial.case.name, ("received too little", got))


def expect_rounds(trial: Trial, most: int) -> None:
    rounds = trial.ledger.rounds()
    if rounds > most:
        peers = [sorted(m.peer for m in trial.ledger.of(r).sends()) for r in range(trial.case.world_size)]
        fail(f"the messages took {rounds} rounds, expected at most {most}", trial.case.name, (rounds, peers))


def chunk_bytes(case: Case) -> list[int]:
    """Bytes of each rank's chunk: the first n mod N chunks of n elements have one element more."""
    first = case.inputs[0]  # once: a large input is drawn anew each time
    quotient, rest = divmod(first.size, case.world_size)
    return [first.itemsize * (quotient + (rank < rest)) for rank in range(case.world_size)]


def turned(sizes: list[int], by: int) -> list[int]:
    """For each rank, the size of the rank that is `by` places further on the ring."""
    return [sizes[(rank + by) % len(sizes)] for rank in range(len(sizes))]


def expect_refusals(function: Any, cases: list[Case], name: str, valid: Case | None = None, expect: Any = None) -> None:
    """A ValueError names the argument, on every rank, before any message.

    valid: a case tried among them that raises nothing. expect: what the exercise's core asks of a list of trials.
    """
    middle = len(cases) // 2
    tried = cases if valid is None else [*cases[:middle], valid, *cases[middle:]]
    trials = run_cases(function, tried)
    for trial in trials:
        if trial.case is valid:
            continue
        for rank, outcome in enumerate(trial.outcomes):
            if outcome.error is None:
                fail(f"rank {rank} raised nothing, expected a ValueError", trial.case.name, "nothing raised")
            if name not in outcome.error[1]:
                text = f"rank {rank}'s ValueError should name {name!r}, but it says {outcome.error[1]!r}"
                fail(text, trial.case.name, "not named")
        if trial.ledger:
            fail("messages were sent before the ValueError", trial.case.name, "sent first")
    if valid is not None:
        expect([trials[middle]])
