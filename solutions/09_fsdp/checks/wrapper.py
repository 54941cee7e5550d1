"""Exercise 5: the wrapper, and the whole state that it gathers."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.profiler import record_function

from autograder.checking import inputs
from autograder.checking.check import EVENTS, REFUSALS, check
from autograder.checking.expect import caught, ceil_div, count_of_ranks, expect_close, expect_equal, fail
from autograder.checking.stage import run_ranks
from autograder.checks.fsdp.live import COUNTING, UNIT_BYTES, UNITS, WIDTH, UnitMeter, expect_nothing_kept, stack
from autograder.checks.fsdp.models import (
    ERROR,
    MODELS,
    OPTIMIZERS,
    WITH_A_ROOT,
    address,
    as_numpy,
    batch,
    build,
    divide,
    groups,
)
from autograder.checks.fsdp.steps import PLAN, Training, follow, steps_of

LR = 0.1
#: The input of the stack of units is so large that its output, after 32 layers that shrink it, is about 0.1, and the
#: first step changes the loss by several per cent.
SCALE = 1e7


#: The case in which nothing is wrong.
WHOLE = "two layers, each a unit"


def _refused() -> dict[str, tuple[nn.Module, list[nn.Module]]]:
    """Case → a model, and units that do not divide it; but in the case `WHOLE` they do."""
    net = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3)), nn.ReLU(), nn.Linear(3, 2))
    tied = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
    tied[2].weight = tied[0].weight
    whole = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
    return {
        "a tie to a layer in no unit": (tied, [tied[0]]),
        "a tie across two units": (tied, [tied[0], tied[2]]),
        WHOLE: (whole, [whole[0], whole[2]]),
        "a unit inside another": (net, [net[0], net[0][1], net[2]]),
        "the same unit twice": (net, [net[0], net[2], net[0]]),
        "a layer of another model": (net, [net[0], net[2], nn.Linear(2, 2)]),
    }


def _drive_refusals(rank: int, world_size: int, wrapper: Any) -> dict[str, Any]:
    observed = {}
    torch.manual_seed(rank)
    for case, (module, units) in _refused().items():
        if case == WHOLE:
            with record_function(WHOLE):
                observed[case] = ": ".join(filter(None, caught(wrapper, module, list(units))))
            continue
        places = [(sub, name, p) for sub in module.modules() for name, p in sub._parameters.items()]
        before = [as_numpy(p) for p in module.parameters()]
        try:
            wrapper(module, list(units))
            observed[case] = None
        except ValueError as error:
            observed[case] = str(error)
        intact = all(sub._parameters.get(name) is p for sub, name, p in places)
        after = [as_numpy(p) for p in module.parameters()]
        if not intact or not all(np.array_equal(a, b) for a, b in zip(before, after, strict=True)):
            observed[case] = "changed" if observed[case] is not None else None
    return observed


@check("09-ex5-fsdp", points=0.5, fixed=REFUSALS)
def wrapper_refuses_what_is_no_partition(FullyShardedDataParallel):
    """Units that do not divide the module are a ValueError on every rank; nothing was changed or sent before it."""
    results = run_ranks(_drive_refusals, 2, (FullyShardedDataParallel,))
    for rank, observed in enumerate(results):
        for case, said in observed.items():
            if case == WHOLE:
                if said:
                    fail(f"rank {rank} raised {said}, expected no error", case, said, said.split(":")[0])
                continue
            if said is None:
                fail(f"rank {rank} raised no ValueError", case, "nothing raised")
            if said == "changed":
                fail(f"the module was changed before the ValueError on rank {rank}", case, said)
            if "units" not in said:
                fail(f"the ValueError on rank {rank} should name 'units', but it says {said!r}", case, "not named")
    if len(results.ledger) > len(results.ledger.within(WHOLE)):
        fail("a message was sent before the ValueError", "2 ranks", [m.call for m in results.ledger.of(0)])


@check("09-ex5-fsdp", points=0.75)
def memory_stays_within_a_unit(FullyShardedDataParallel, *, rng):
    """Between steps only shards are alive; during a step at most the gradient shards and 5 S more are."""
    world_size = 2
    x = torch.from_numpy(rng.standard_normal((1, WIDTH)).astype(np.float32)) * SCALE
    got = run_ranks(_drive_memory, world_size, (FullyShardedDataParallel, x))[COUNTING]
    for what, frozen, ((held, peak, after), losses) in zip(
        ("units", "units, 14 frozen"), (False, True), got, strict=True
    ):
        trained = 2 if frozen else UNITS
        case, allowed = f"{world_size} ranks, {UNITS} {what} of S bytes", trained / world_size + 5
        # What is metered must be right as well: layers that are skipped hold nothing.
        for step, (loss, want) in enumerate(zip(losses, _losses(frozen, x), strict=True), start=1):
            expect_close(case, np.array(loss), np.array(want), what=f"the loss of step {step}", rtol=1e-3)
        evidence = [what, held > _held(trained, world_size), peak > allowed, peak <= allowed and after > 2]
        if held > _held(trained, world_size):
            text = f"{held:.1f} S are alive between steps, expected at most {_held(trained, world_size):.1f} S"
            fail(f"{text}: shards, momentum and 2 S more", case, evidence)
        if peak > allowed:
            text = f"live bytes peak at {peak:.1f} S above those before the step, expected at most {allowed:.1f} S"
            fail(text, case, evidence)
        if after > 2:
            text = f"after a step {after:.1f} S more are alive than before it, expected at most 2 S"
            fail(text, case, evidence)
    expect_nothing_kept(FullyShardedDataParallel, units=False)


#: Models with units that have nothing to train: a frozen layer, an activation.
UNTRAINED = ("frozen parameters", "two layers, listed backwards")


def _drive_listed(rank: int, world_size: int, wrapper: Any, seed: int) -> dict[str, list[int]]:
    wrapped = {name: wrapper(*build(name, seed)) for name in UNTRAINED}
    return {name: [p.numel() for p in one.parameters() if p.requires_grad] for name, one in wrapped.items()}


@check("09-ex5-fsdp", points=0.25)
def only_what_trains_has_a_trainable_shard(FullyShardedDataParallel, *, rng):
    """A unit with nothing to train, such as a frozen layer, has no trainable shard among the parameters."""
    world_size, seed = 2, inputs.seed(rng)
    for observed in run_ranks(_drive_listed, world_size, (FullyShardedDataParallel, seed)):
        for name, got in observed.items():
            trained = [sum(p.numel() for p in groups(params)[0]) for params in divide(*build(name, seed))]
            want = [ceil_div(n, world_size) for n in trained if n]
            what = "the list of the trainable shards' lengths"
            expect_equal(f"{count_of_ranks(world_size)}, {name}", got, want, what=what)


class _Inner(nn.Linear):
    """Casts what it is given to its weight's dtype."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.to(self.weight.dtype))


class _Root(nn.Module):
    """Records the dtype of a parameter that belongs to no unit."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = _Inner(2, 2)
        self.gain = nn.Parameter(torch.rand(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = str(self.gain.dtype)[6:]
        return self.layer(x) * self.gain


def _drive_root(rank: int, world_size: int, wrapper: Any) -> list:
    module = _Root()
    wrapped = wrapper(module, [module.layer], torch.bfloat16)
    wrapped(torch.ones(1, 2))
    return [module.seen, sum(p.requires_grad for p in wrapped.parameters())]


@check("09-ex5-fsdp", points=0.5)
def full_state_is_the_plain_modules(FullyShardedDataParallel, *, rng):
    """Rank 0 gets copies of the plain module's whole state, the others {}; nothing stays whole; buffers start equal."""
    for world_size in (3, 1):
        cases = [Training(model, "SGD with momentum", inputs.seed(rng), 2) for model in (*MODELS[:4], WITH_A_ROOT[0])]
        cases.append(Training(MODELS[0], "SGD with momentum", inputs.seed(rng), 2, dtype="bfloat16"))
        results = run_ranks(_drive_state, world_size, (FullyShardedDataParallel, cases))
        for number, case in enumerate(cases):
            _expect_state(
                case, f"{count_of_ranks(world_size)}, {case.name}", [mine[number] for mine in results], world_size
            )
        want, got = results[0][0]["pair"]
        expect_close(f"{count_of_ranks(world_size)}, a module of two inputs", got, want, what="the output", rtol=1e-5)
    left = run_ranks(_drive_what_is_left, 2, (FullyShardedDataParallel,))[COUNTING]
    for what, extra in zip(("units", "units, 14 frozen"), left, strict=True):
        if extra > 2:
            text = f"after full_state_dict() {extra:.1f} S more are alive than before it, expected at most 2 S"
            fail(text, f"2 ranks, {UNITS} {what} of S bytes", ["left", [x > 2 for x in left]])


class _Recording(nn.Module):
    """Records the dtypes of its inputs; gives its output in a dtype of its choice."""

    def __init__(self, gives: torch.dtype) -> None:
        super().__init__()
        self.layer, self.gives = _Inner(2, 2), gives

    def forward(self, x: torch.Tensor, tokens: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.seen = [str(t.dtype)[6:] for t in (x, tokens, y)]
        return self.layer(x + y).to(self.gives)


#: The dtypes in which the modules give their outputs. None: without a compute dtype.
GIVEN = {"float64": torch.bfloat16, "bfloat16": torch.bfloat16, "float16": None}


def _drive_inputs(rank: int, world_size: int, wrapper: Any) -> list[tuple[list[str], str]]:
    observed = []
    for gives, compute in GIVEN.items():
        module = _Recording(getattr(torch, gives))
        wrapped = wrapper(module, [module.layer], compute)
        output = wrapped(torch.ones(1, 2), torch.zeros(3, dtype=torch.int64), torch.ones(2))
        observed.append((module.seen, str(output.dtype)[6:]))
    return observed


@check("09-ex5-fsdp", points=0.5, fixed=EVENTS)
def floating_inputs_are_cast(FullyShardedDataParallel):
    """Floating inputs reach the module in the compute dtype, other inputs in their own; the output keeps its dtype."""
    got = run_ranks(_drive_inputs, 1, (FullyShardedDataParallel,))[0]
    for (gives, compute), (seen, output) in zip(GIVEN.items(), got, strict=True):
        case = f"compute_dtype={compute}, inputs float32, int64, float32, a module that gives {gives}"
        floating = str(compute or torch.float32)[6:]
        expect_equal(case, seen, [floating, "int64", floating], what="the list of the dtypes that reach the module")
        expect_equal(case, output, gives, what="the output's dtype")


def _drive_memory(rank: int, world_size: int, wrapper: Any, x: torch.Tensor) -> list[tuple[list[float], list[float]]]:
    """For all units trainable, and for all but two frozen: alive between steps, at the peak, after a step.

    Also the loss of each step.
    """
    observed = []
    for frozen, trained in ((False, UNITS), (True, 2)):
        start, losses = UnitMeter(rank), []
        model = stack(frozen, pairs=True)
        wrapped = wrapper(model, list(model))
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=LR, momentum=0.9)
        for step in range(2):
            gc.collect()
            meter = UnitMeter(rank, trained / world_size + 5)
            if meter.live:
                most = start.before + _held(trained, world_size) * UNIT_BYTES
                held = (meter.live.settled(most) - start.before) / UNIT_BYTES
            with meter if step else nullcontext():
                loss = wrapped(x).square().mean()
                loss.backward()
                losses.append(loss.item())
                del loss
                optimizer.step()
                optimizer.zero_grad()
        observed.append(([held if meter.live else 0.0, meter.peak, meter.above(2)], losses))
        del wrapped, optimizer, model
    return observed


def _losses(frozen: bool, x: torch.Tensor) -> list[float]:
    """Those of the same two steps in one process."""
    with torch.random.fork_rng(devices=[]):
        model = stack(frozen, pairs=True)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=LR, momentum=0.9)
    losses = []
    for _ in range(2):
        loss = model(x).square().mean()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def _held(trained: int, world_size: int) -> float:
    """Units' bytes that may be alive between steps: shards, the momentum of those trained, and 2 S."""
    return (UNITS + trained) / world_size + 2


@check("09-ex5-fsdp", points=0.5)
def compute_dtype_halves_the_bytes(FullyShardedDataParallel, *, rng):
    """With a compute dtype of bf16, layers and all-gathers use it; shards, gradients, sums and buffers do not."""
    seen, trained = run_ranks(_drive_root, 1, (FullyShardedDataParallel,))[0]
    if seen != "bfloat16":
        text = f"with compute_dtype=torch.bfloat16 a parameter that no unit names is {seen} in the forward"
        fail(f"{text}, expected bfloat16", "1 rank, a layer as a unit, and a factor", [seen, trained])
    for n in (3, 1):
        for model in (*MODELS, WITH_A_ROOT[0]):
            training = Training(model, "SGD with momentum", inputs.seed(rng), steps=1, dtype="bfloat16")
            yield steps_of(FullyShardedDataParallel, training, n, bare=False)


def _drive_state(rank: int, world_size: int, wrapper: Any, cases: list[Training]) -> list[dict]:
    observed = []
    for case in cases:
        module, units = build(case.model, case.seed + 7 * rank)
        dtype = [getattr(torch, case.dtype)] if case.dtype != "float32" else []
        wrapped = wrapper(module, units, *dtype)
        started = [[as_numpy(b), str(b.dtype)[6:]] for b in module.buffers()]
        optimizer = OPTIMIZERS[case.optimizer](wrapped.parameters())
        states, taken = [], {}
        for step in range(2):
            x, y = batch(case.model, case.seed, step, rank)
            (wrapped(x).float() - y).square().mean().backward()
            # The first is taken before the optimizer changes what the next forward must use.
            states += [wrapped.full_state_dict()] if not step else []
            optimizer.step()
            optimizer.zero_grad()
            states += [wrapped.full_state_dict()] if step else []
            taken = taken or {name: as_numpy(t) for name, t in states[0].items()}
        first = states[0]
        plain, loads = build(case.model, 0)[0], "loaded"
        try:
            plain.load_state_dict(first, strict=True) if rank == 0 else None
        except RuntimeError as error:
            loads = str(error)
        wrapped.eval()
        modes = [m.training for m in module.modules()]
        wrapped.train()
        live = {address(t) for t in [*module.buffers(), *wrapped.parameters()] if t.numel()}
        faults = []
        for name, t in first.items():
            faults += [[name, "requires a gradient"]] if t.requires_grad else []
            if t.numel() and address(t) in live:
                faults.append([name, "shares its memory with a buffer or a shard of the model"])
            elif t.untyped_storage().nbytes() != t.nbytes:
                faults.append([name, f"keeps {t.untyped_storage().nbytes()} bytes alive for its own {t.nbytes}"])
        observed.append(
            {
                "states": [{n: as_numpy(t) for n, t in s.items()} for s in states],
                "taken": taken,
                "dtypes": {n: str(t.dtype)[6:] for n, t in first.items()},
                "faults": sorted(faults),
                "loads": loads,
                "started": started,
                "modes": any(modes) or not module.training,
            }
        )
    torch.manual_seed(7)
    pair, inputs = nn.Bilinear(2, 3, 2), (torch.ones(1, 2), torch.arange(3.0).view(1, 3))
    expected = as_numpy(pair(*inputs))
    observed[0]["pair"] = [expected, as_numpy(wrapper(pair, [pair])(*inputs))]
    return observed


def _drive_what_is_left(rank: int, world_size: int, wrapper: Any) -> list[float]:
    """Units' bytes alive after the state was taken, above those before; all units trainable, then all but two frozen.

    The rank that counts is not the one that gets the state.
    """
    left = []
    for frozen in (False, True):
        model = stack(frozen, pairs=False)
        wrapped, meter = wrapper(model, list(model)), UnitMeter(rank)
        with meter:
            wrapped.full_state_dict()
            left.append(meter.above(2))
        del wrapped, model
    return left


@check("09-ex5-fsdp", points=3)
def steps_follow_one_process(FullyShardedDataParallel, *, rng):
    """After every step the shards are one process's parameters, cut, and no rank sent more than allowed."""
    for n, models in PLAN.items():
        trainings = [Training(MODELS[k], "SGD with momentum", inputs.seed(rng)) for k in models]
        trainings[-1].halves = True
        trainings += [Training(MODELS[k], "Adam", inputs.seed(rng)) for k in models[:2]]
        trainings += [Training(model, "SGD with momentum", inputs.seed(rng)) for model in WITH_A_ROOT]
        for training in trainings:
            yield steps_of(FullyShardedDataParallel, training, n, bare=False)


def _expect_state(case: Training, name: str, seen: list[dict], world_size: int) -> None:
    fresh = build(case.model, case.seed)[0]
    for rank, got in enumerate(seen):
        for buffer, (values, dtype) in zip(fresh.buffers(), got["started"], strict=True):
            if dtype != str(buffer.dtype)[6:]:
                fail(f"a buffer on rank {rank} is {dtype}, expected {str(buffer.dtype)[6:]}", name, [dtype])
            if not np.array_equal(values, as_numpy(buffer)):
                text = f"a {dtype} buffer on rank {rank} did not start as rank 0's"
                fail(text, name, ["buffer", *(mine["started"][0][0] for mine in seen)])
        if rank and got["states"] != [{}, {}]:
            sizes = [len(state) for state in got["states"]]
            fail(f"rank {rank} got states with {sizes} entries, expected {{}} each time", name, "not empty")
        if got["modes"]:
            fail("eval() and train() of the wrapper do not reach the module", name, "modes")
    got, reference = seen[0], follow(case, world_size)["module"]
    plain, constant = reference.state_dict(), {n for n, _ in fresh.named_buffers()}
    if set(got["states"][1]) != set(plain):
        missing, more = sorted(set(plain) - set(got["states"][1])), sorted(set(got["states"][1]) - set(plain))
        text = f"the state lacks {missing}, and it has {more}, which a plain module's does not"
        fail(text, name, [missing, more])
    for key, tensor in plain.items():
        if got["dtypes"][key] != str(tensor.dtype)[6:]:
            fail(f"{key} is {got['dtypes'][key]}, expected {str(tensor.dtype)[6:]}", name, [key, got["dtypes"][key]])
        want, have = as_numpy(tensor), got["states"][1][key]
        if case.dtype != "float32":
            # Two steps of bf16 can round apart; values that are all bf16 numbers did not come from the shards.
            rounded = have.size > 6 and np.array_equal(torch.tensor(have).bfloat16().float().numpy(), have)
            if rounded or not np.allclose(have, want, atol=0.02):
                fail(f"{key} is not the float32 parameter that the shards hold", name, [key, bool(rounded)])
        elif "calls" in key:
            if int(have) != int(fresh.start.calls) + 2:
                fail(f"the buffer {key} is {int(have)}, expected {int(fresh.start.calls) + 2}", name, int(have))
        elif key in constant:
            expect_close(name, have, want, what=f"the buffer {key}", rtol=0.0)
        else:
            expect_close(name, have, want, what=key, rtol=5 * ERROR, atol=ERROR)
    if got["faults"]:
        fail(f"in the state, {' '.join(got['faults'][0])}", name, got["faults"])
    for key in plain:
        if not np.array_equal(got["taken"][key], got["states"][0][key]):
            fail(f"{key} in a state that was taken before changed with a later step", name, ["changed", key])
    if got["loads"] != "loaded":
        fail(f"a plain module does not load the state: {got['loads']}", name, "not loaded")
