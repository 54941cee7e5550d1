"""Lesson 17, exercise 4: a run, with checkpoints, resumed, and with faults."""

from __future__ import annotations

import hashlib
import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checks.check import EVENTS, check
from autograder.checks.expect import OneRank, digits_that_differ, each_rank, fail

from .common import (
    LISTS,
    LOSS_ERROR,
    MARGIN,
    NORM_ERROR,
    NUMEL,
    PARAMETER_ERROR,
    PIECES,
    bytes_of_state,
    corpus_of,
    equip,
    expect_described,
    expect_parameters,
    expect_told,
    run_ranks,
    spoil,
    train_alone,
    what_it_says,
)


def _drive_train(rank: int, world_size: int, train: Any, root: str, options: dict, steps: int, at: int | None) -> dict:
    """Inside a rank: one run, with a checkpoint at step `at`, if that is given, or from `resume_from`."""
    equip(train)
    return train(rank, world_size, steps, root if at else None, at, **options)


#: (world size, options, steps, the step of the checkpoint).
PLANS: list[tuple[int, dict, int, int | None]] = [
    (3, {"micro_batches": 2}, 8, 4),
    (2, {"lr": 2e-3}, 4, None),
    (1, {"micro_batches": 4}, 5, 3),
    (4, {}, 20, 16),
]


def _case(world_size: int, options: dict) -> str:
    return ", ".join([f"N = {world_size}", *(f"{name} = {value}" for name, value in options.items())])


@check("17-ex4-train", points=1.5)
def training_follows_one_process(train, *, rng):
    """Every number of every step is that of one process, with or without a checkpoint."""
    for world_size, options, steps, at in PLANS:
        seed, case = int(rng.integers(8)), _case(world_size, options)  # seeds whose margin was measured at every rate
        with tempfile.TemporaryDirectory(prefix="check-") as root:
            given = {"seed": seed, **options}
            whole = list(run_ranks(_drive_train, world_size, (train, root, given, steps, at)))
            reference = train_alone(corpus_of(seed), world_size, steps, seed, options.get("lr", 3e-3))
            _expect_run(case, whole, reference, steps)


@check("17-ex4-train", points=0.75)
def only_the_step_that_was_asked_for_is_saved(train, *, rng):
    """The step checkpoint_step alone is saved, and reported; without a folder, nothing is."""
    for world_size, steps, at in ((2, 6, int(rng.integers(2, 4))), (3, 4, None)):
        case = f"N = {world_size}, {steps} steps, checkpoint_step = {at}"
        with tempfile.TemporaryDirectory(prefix="check-") as root:
            whole = list(run_ranks(_drive_train, world_size, (train, root, {}, steps, at)))
            saved = [[entry.get("step") for entry in mine["checkpoints"]] for mine in whole]
            wanted = [at] if at else []
            there = sorted(path.name for path in Path(root).iterdir())
            if saved != [wanted] * world_size or there != [f"step_{step:08d}" for step in wanted]:
                told = (
                    f"expected checkpoints of the steps {wanted}; the ranks report {saved}, and the folder has {there}"
                )
                fail(told, case, ["saved", [[step - (at or 0) for step in mine] for mine in saved]])


@check("17-ex4-train", points=1.25)
def a_resumed_run_is_the_run_that_never_stopped(train, *, rng):
    """A checkpoint holds the state after its step; in other processes the run goes on from it, bit for bit."""
    for world_size, options, steps, at in PLANS[:1] + PLANS[2:]:
        assert at is not None
        steps, at = min(steps, at + 4), int(rng.integers(2, at + 1))
        seed, case = int(rng.integers(8)), _case(world_size, options)
        with tempfile.TemporaryDirectory(prefix="check-") as root:
            given = {"seed": seed, **options}
            whole = list(run_ranks(_drive_train, world_size, (train, root, given, steps, at)))
            _expect_checkpoint(case, whole, corpus_of(seed), seed, at)
            given["resume_from"] = whole[0]["checkpoints"][0]["path"]
            rest = run_ranks(_drive_train, world_size, (train, root, given, steps, None))
            _expect_resumed(case, whole, list(rest), at)


def _expect_run(case: str, whole: list[dict], want: dict, steps: int) -> None:
    """What all ranks returned is whole, the same where it must be, and what one process computes."""
    for rank, mine in each_rank(case, whole):
        _expect_lists(rank, mine, steps)
    for name in ("losses", "grad_norms", "norms", "hashes"):
        for rank, mine in each_rank(case, whole):
            differ = [step for step in range(steps) if mine[name][step] != whole[0][name][step]]
            rank.expect(not differ, f"{name} differ from rank 0's at step {[*differ, 0][0] + 1}", [name, rank.rank])
    _expect_near(case, "losses", whole[0]["losses"], want["losses"], [LOSS_ERROR] * steps)
    norms = want["grad_norms"]
    _expect_near(case, "grad_norms", whole[0]["grad_norms"], norms, [NORM_ERROR * norm for norm in norms])
    losses = whole[0]["losses"]
    for step, (before, after) in enumerate(itertools.pairwise(losses), start=1):
        if not before - after >= MARGIN:
            fail(f"from step {step} to {step + 1} the loss goes from {before} to {after}", case, losses)
    for rank, mine in each_rank(case, whole):
        _expect_end(rank, mine, len(whole), want["parameters"][-1])


def _expect_lists(rank: OneRank, mine: dict, steps: int) -> None:
    """A dict with all entries; its lists have one plain value per step."""
    keys = {*LISTS, "parameters", "numel", "checkpoints"}
    missing = sorted(keys - set(mine)) if isinstance(mine, dict) else "all"
    rank.expect(not missing, f"what train returned lacks {missing}", ["keys", missing])
    made = list(mine["steps"])
    rank.expect(made == list(range(1, steps + 1)), f"the steps are {mine['steps']}", ["steps", made])
    for name in LISTS:
        kinds = {type(value) for value in mine[name]}
        plain = len(mine[name]) == steps and kinds <= {int, float, str}
        rank.expect(plain, f"{name} should be {steps} plain values", [name, len(mine[name]), len(kinds)])


def _expect_near(case: str, name: str, ours: list, theirs: Any, bounds: Any) -> None:
    """Step by step, the number of rank 0 is within its bound of the number of one process."""
    for step, (one, other, bound) in enumerate(zip(ours, theirs, bounds, strict=True), start=1):
        if not abs(one - other) <= bound:
            got, expected = digits_that_differ(one, other)
            fail(f"{name} at step {step}: {got}, one process has {expected}", case, [name, list(ours)])


def _expect_end(rank: OneRank, mine: dict, world_size: int, parameters: np.ndarray) -> None:
    """What a rank holds at the end: its share of the state, and the parameters of one process."""
    held = mine["state_bytes"]
    rank.expect(set(held) == {bytes_of_state(world_size)}, f"state_bytes starts with {held[0]}", ["bytes", held])
    seconds = mine["seconds"]
    rank.expect(all(0 <= each < 60 for each in seconds), f"the seconds are {seconds}", "seconds")
    ours = mine["parameters"]
    whole = isinstance(ours, np.ndarray) and ours.dtype == np.float32 and mine["numel"] == NUMEL
    rank.expect(whole, "parameters should be a float32 array, numel its length", ["parameters", str(type(ours))])
    expect_parameters(rank.case, rank.rank, ours, parameters)
    expect_described(rank.case, rank.rank, ours, mine["norms"][-1], mine["hashes"][-1])


def _expect_checkpoint(case: str, whole: list[dict], corpus: np.ndarray, seed: int, at: int) -> None:
    """The first checkpoint is of the state after step `at`, with the digests that were reported."""
    steps = [[entry.get("step") for entry in mine["checkpoints"]] for mine in whole]
    if [mine[:1] for mine in steps] != [[at]] * len(whole):
        fail(f"expected a checkpoint of step {at}; the ranks report {steps}", case, ["checkpoints", steps])
    path = Path(whole[0]["checkpoints"][0]["path"])
    manifest = json.loads((path / "manifest.json").read_bytes())
    masters = []
    for rank, mine in enumerate(whole):
        shard = manifest["shards"][rank]
        data = (path / shard["file"]).read_bytes()
        parts = {}
        for name, place in shard["tensors"].items():
            parts[name] = data[place["offset"] : place["offset"] + 4 * place["numel"]]
        digest = hashlib.sha256(b"".join(parts[name] for name in sorted(parts))).hexdigest()
        if mine["checkpoints"][0]["sha256"] != digest:
            fail(f"rank {rank}'s sha256 is not that of its tensors on the disk", case, ["sha256", rank])
        masters.append(np.frombuffer(parts["master"], np.float32))
    saved, after = np.concatenate(masters), train_alone(corpus, len(whole), at, seed)["parameters"][at]
    if hashlib.sha256(saved.tobytes()).hexdigest() != whole[0]["hashes"][at - 1]:
        near = [bool(np.max(np.abs(saved - after)) < PARAMETER_ERROR), manifest["values"].get("step")]
        fail(f"the checkpoint of step {at} does not hold the parameters after step {at}", case, near)


def _expect_resumed(case: str, whole: list[dict], rest: list[dict], at: int) -> None:
    """Every number of a resumed run is, bit for bit, that of the run which never stopped."""
    for rank, (mine, again) in each_rank(case, zip(whole, rest, strict=True), evidence=lambda pair: pair[1]["steps"]):
        made = again["steps"]
        rank.expect(made == mine["steps"][at:], f"resumed after step {at}, the steps are {made}", ["resumed", made])
        for name in ("losses", "hashes", "grad_norms", "norms", "state_bytes"):
            for step, before, after in zip(made, mine[name][at:], again[name], strict=True):
                seen = [name, step] if name == "hashes" else [name, step, again["losses"]]
                what = f"resumed, {name} at step {step} is {after}, without a stop {before}"
                rank.expect(before == after, what, seen)
        same = again["parameters"].tobytes() == mine["parameters"].tobytes()
        rank.expect(same, "in the resumed run, the parameters at the end are different", "parameters")
        saved = again["checkpoints"]
        rank.expect(saved == [], "resumed with checkpoint_step = None, a checkpoint was saved", "saved")


class _Faulty(PIECES.ZeroOptimizer):
    """The reference optimizer with a fault in one of its steps; `kind`, `at` and `culprit` are set on subclasses."""

    kind, at, culprit, made = "", 0, 0, 0

    def step(self) -> None:
        super().step()
        self.made += 1
        mine = self.made == self.at and dist.get_rank() == self.culprit
        with torch.no_grad():
            if self.kind == "loss" and self.made == self.at:
                self.params[-1].mul_(-8)  # the head, on all ranks alike; the masters stay
            if self.kind == "parameters" and mine:
                self.params[3].view(-1)[0] += 1e-3
        if self.kind == "bytes" and mine:
            self.optimizer.state[self.master]["kept"] = torch.zeros(7)

    def state_bytes(self) -> int:
        if self.kind == "memory" and self.made == self.at and dist.get_rank() == self.culprit:
            with torch.no_grad():
                self.params[3].view(-1)[0] += 1e-3  # after the step has described its parameters
        return super().state_bytes()


def _faulty(kind: str, at: int, culprit: int) -> type:
    return type("ZeroOptimizer", (_Faulty,), {"kind": kind, "at": at, "culprit": culprit})


def _drive_faults(
    rank: int, world_size: int, train: Any, root: str, faults: list[tuple]
) -> list[tuple[tuple, list[str]]]:
    """Inside a rank: for each fault what train raises, and what check_start was given to compare in each step."""
    check_start = equip(train).get("check_start")
    outcomes = []
    for kind, at, culprit, options in faults:

        def load(path, culprit=culprit):
            state, manifest = PIECES.load_sharded(path)
            return (spoil(state, "one bit") if rank == culprit else state), manifest

        instead = {"load_sharded": load} if kind == "checkpoint" else {"ZeroOptimizer": _faulty(kind, at, culprit)}
        given: list[str] = []

        def watching(rank, world_size, step, digest, last, given=given):
            given.append("nothing" if last is None else "itself" if digest == last else "another")
            return check_start(rank, world_size, step, digest, last)

        equip(train, check_start=watching, **instead)
        dist.barrier()
        folder = f"{root}/{kind}-{at}"
        said = what_it_says(lambda o=options, f=folder: train(rank, world_size, 6, f, o.pop("save", None), **o))
        outcomes.append((said, given))
    return outcomes


@check("17-ex4-train", points=0.75, fixed=EVENTS)
def broken_invariants_stop_every_rank(train):
    """A fault in a step ends the run, on all ranks, with the invariant that it breaks, before anything is saved."""
    faults = [
        ("loss", 4, 0, {}, "loss", 0, 5),
        ("parameters", 3, 1, {"save": 3}, "parameters", 1, 3),
        ("bytes", 2, 2, {}, "bytes", 2, 2),
        ("checkpoint", 2, 1, {"save": 2}, "checkpoint", 1, 2),
    ]
    _expect_stopped(train, faults)


@check("17-ex4-train", points=0.75, fixed=EVENTS)
def memory_is_compared_with_the_last_update(train):
    """Parameters that change after a step, on one rank, end the run on all ranks before the next forward."""
    _expect_stopped(train, [("memory", 3, 2, {}, "memory", 2, 4)])


def _expect_stopped(train: Any, faults: list[tuple]) -> None:
    """Of each (kind, step, culprit, options, word, rank, step in the text) all ranks raise the same."""
    with tempfile.TemporaryDirectory(prefix="check-") as root:
        results = run_ranks(_drive_faults, 3, (train, root, [fault[:4] for fault in faults]))
        saved = [json.loads(path.read_bytes()) for path in Path(root, "parameters-3").glob("step_*/manifest.json")]
    for number, (kind, at, culprit, _, word, named, step) in enumerate(faults):
        what = {
            "loss": "the loss rises",
            "parameters": f"rank {culprit}'s parameters change",
            "memory": f"rank {culprit}'s parameters change after the step,",
            "bytes": f"rank {culprit} keeps a tensor",
            "checkpoint": f"rank {culprit} reads a wrong bit",
        }[kind]
        told = [mine[number] for mine in results]
        given = [seen for _, seen in told] if kind == "memory" else ()
        case = f"{what} in step {at}"
        expect_told(case, [said for said, _ in told], word, named, step, given)
        if (kind, at) == ("parameters", 3) and saved:
            updates = saved[0]["values"].get("step")  # tells a state that was saved too early from one after the step
            fail("the step that broke the invariant was saved before it was checked", case, ["saved", updates])
