"""Exercise 5: the wrapper, and the whole state that it gathers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from autograder.checks import inputs
from autograder.checks.cases import ANYTHING, Case, at_most, close, fact
from autograder.checks.check import MEMORY, check

from .live import COUNTING, UNITS, UnitMeter, stack
from .models import (
    ERROR,
    FEW,
    FROZEN,
    LAYERS,
    NORMED,
    ONE_UNIT,
    ONLY_ROOT,
    ROOT,
    TIED,
    TOKENS,
    as_numpy,
    batch,
    build,
    optimizer_of,
)
from .steps import Training, follow, steps_of

FSDP = "09-ex5-fsdp"


def _steps(wrapper: Any, plan: dict[int, tuple[str, ...]], rng: Any) -> Iterator[Case]:
    for n, models in plan.items():
        for model in models:
            yield steps_of(wrapper, Training(model, inputs.seed(rng), bare=False), n)


@check(FSDP, points=1.5)
def steps_follow_one_process(FullyShardedDataParallel, *, rng):
    """After every step the shards, in the order of the units, are one process's parameters, cut."""
    yield from _steps(FullyShardedDataParallel, {3: (LAYERS, TIED, ONE_UNIT, TOKENS), 1: (TIED,), 5: (FEW,)}, rng)


@check(FSDP, points=0.75)
def what_no_unit_names_is_the_roots(FullyShardedDataParallel, *, rng):
    """Parameters that no unit names are trained too, as the last unit; perhaps these are all."""
    yield from _steps(FullyShardedDataParallel, {3: (ROOT, ONLY_ROOT), 2: (ROOT,)}, rng)


@check(FSDP, points=0.25)
def only_what_trains_is_a_parameter(FullyShardedDataParallel, *, rng):
    """Frozen parameters are computed with, and a unit with nothing to train has no shard among the parameters."""
    yield from _steps(FullyShardedDataParallel, {3: (FROZEN,), 2: (FROZEN,)}, rng)


@dataclass
class State:
    """The whole state after a step."""

    names: list[str] = fact("the list of the names in the state")
    numbers: Any = fact("{} in the state")


@dataclass
class Later:
    """How far the numbers of a state are from what they were, when two more steps have been made."""

    changed: list[str] = fact("the list of what has changed in a state that was taken before two more steps")


def _drive_state(rank: int, world_size: int, wrapper: Any, training: Training) -> list[Any]:
    module, units = build(training.model, training.seed + 7 * rank)
    wrapped = wrapper(module, units, *([torch.bfloat16] if training.dtype != "float32" else []))
    optimizer, found = optimizer_of(wrapped.parameters()), []
    for step in range(3):
        x, y = batch(training.model, training.seed, step, rank)
        (wrapped(x).float() - y).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 0:
            state = wrapped.full_state_dict()
            taken = {name: tensor.detach().clone() for name, tensor in state.items()}
            found = [State(sorted(taken), taken)]
    return [*found, Later(sorted(name for name in taken if not torch.equal(taken[name], state[name].detach())))]


def _state_case(wrapper: Any, training: Training, n: int, others: bool = False, later: bool = False) -> Case:
    """The state of rank 0, or what the others have, or what has become of it later."""
    plain = {name: as_numpy(tensor) for name, tensor in follow(training, n)["module"].state_dict().items()}
    # A step of bf16 can round apart.
    error = ERROR if training.dtype == "float32" else 0.02
    dtypes = {name: str(tensor.dtype)[6:] for name, tensor in build(training.model, 0)[0].state_dict().items()}
    numbers = {name: close(value, 0, error, dtypes[name]) for name, value in plain.items()}
    right = State(sorted(plain), numbers)
    mine, rest = [right, Later()], [State([]) if others else State(), Later()]
    if others or later:
        mine = [State(sorted(plain)), Later([]) if later else Later()]
    return Case(training.name, n, _drive_state, (wrapper, training), [mine] + [rest] * (n - 1))


@check(FSDP, points=0.5)
def the_state_is_the_plain_modules(FullyShardedDataParallel, *, rng):
    """Rank 0 gets the plain module's whole state: all names, tied ones too, and the numbers of the shards."""
    for n, model in ((3, LAYERS), (3, TIED), (3, FROZEN), (2, ROOT), (1, TIED)):
        yield _state_case(FullyShardedDataParallel, Training(model, inputs.seed(rng), steps=1, bare=False), n)


@check(FSDP, points=0.25)
def only_rank_0_has_a_state(FullyShardedDataParallel, *, rng):
    """The other ranks get {}."""
    for n in (2, 3):
        training = Training(NORMED, inputs.seed(rng), steps=1, bare=False)
        yield _state_case(FullyShardedDataParallel, training, n, others=True)


@check(FSDP, points=0.25)
def a_state_stays_as_it_was(FullyShardedDataParallel, *, rng):
    """Later steps do not change a state, nor the buffers in it."""
    for n in (2, 3):
        training = Training(NORMED, inputs.seed(rng), steps=1, bare=False)
        yield _state_case(FullyShardedDataParallel, training, n, later=True)


@dataclass
class Seen:
    """In which dtype a parameter of the root computed."""

    dtype: str = fact("the dtype of a parameter that no unit names, in the forward,")


class _Gained(nn.Module):
    """Records the dtype of a parameter that belongs to no unit."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.gain = nn.Parameter(torch.rand(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = str(self.gain.dtype)[6:]
        return self.layer(x) * self.gain


def _drive_root(rank: int, world_size: int, wrapper: Any) -> Seen:
    module = _Gained()
    wrapper(module, [module.layer], torch.bfloat16)(torch.ones(1, 2))
    return Seen(module.seen)


@check(FSDP, points=0.25)
def the_root_computes_in_the_dtype(FullyShardedDataParallel, *, rng):
    """With a compute dtype the root's unit computes in it as well, and the state has the float32 of the shards."""
    yield Case("a layer as a unit, and a factor", 1, _drive_root, (FullyShardedDataParallel,), [Seen("bfloat16")])
    training = Training(LAYERS, inputs.seed(rng), steps=1, dtype="bfloat16", bare=False)
    yield _state_case(FullyShardedDataParallel, training, 2)


#: Vectors as long as a unit that a rank may have while the state is taken.
MOST = 4


@dataclass
class Taken:
    """What a rank that gets no state holds while it is taken, and afterwards, above what it held before, in S."""

    length: int = fact("the number of entries in the state")
    peak: float = fact("the S alive at once besides what was before", seen=lambda s: s > 2 * MOST)
    left: float = fact("the S left alive afterwards", seen=lambda s: s > 1)


def _drive_taken(rank: int, world_size: int, wrapper: Any, frozen: bool) -> Taken:
    model = stack(frozen=frozen)
    wrapped, meter = wrapper(model, list(model)), UnitMeter(rank, MOST)
    with meter:
        state = wrapped.full_state_dict()
        left = meter.above(0.9)
    return Taken(len(state), meter.peak, left)


@check(FSDP, points=0.25, fixed=MEMORY)
def the_state_is_gathered_unit_by_unit(FullyShardedDataParallel):
    """On ranks that get no state, at most four vectors as long as a unit are alive at once, and nothing is left."""
    for frozen in (False, True):
        # Rank 0 has the state; nothing is counted there.
        expect = [
            Taken(UNITS) if rank != COUNTING else Taken(ANYTHING, at_most(MOST), at_most(0.9)) for rank in range(2)
        ]
        name = f"{UNITS} units{', 14 frozen,' if frozen else ''} of S bytes"
        yield Case(name, 2, _drive_taken, (FullyShardedDataParallel, frozen), expect)
