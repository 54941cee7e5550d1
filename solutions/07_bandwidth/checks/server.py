"""Lesson 07, exercise 5: a parameter server, synchronous and asynchronous."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from autograder.checking.check import check
from autograder.checking.expect import count_of_ranks, each_rank, expect_close, expect_equal, fail
from autograder.checking.stage import run_ranks
from autograder.checks.bandwidth.common import HEADER, PATIENCE, laid_out, shares_memory
from ranks import stopwatch


def _slope(w: np.ndarray, worker: int, step: int) -> np.ndarray:
    """A gradient that depends on the worker and the step, and on w along a curve."""
    return (np.tanh(w * worker) + 0.25 * np.cos(step + np.arange(w.size).reshape(w.shape) * worker)).astype(w.dtype)


class _Gates:
    """Files that ranks create and wait for. gave_up: whether a wait ended after PATIENCE without its file."""

    def __init__(self, folder: str):
        self.folder, self.gave_up = Path(folder), False

    def open(self, name: str) -> None:
        (self.folder / name).touch()

    def wait(self, name: str) -> None:
        waited = stopwatch.own()
        while not (self.folder / name).exists():
            if waited.seconds() > PATIENCE:
                self.gave_up = True
                return
            time.sleep(0.002)


def _no_gate(gates: _Gates, worker: int, step: int, steps: int, workers: int) -> None:
    """All workers at their own speed."""


def _late_first(gates: _Gates, worker: int, step: int, steps: int, workers: int) -> None:
    """Worker 1 is slower than worker 2, which is slower than worker 3: gradients arrive in falling order."""
    time.sleep(0.04 * (workers - worker))


def _one_waits(gates: _Gates, worker: int, step: int, steps: int, workers: int) -> None:
    """Worker 1's first gradient waits until worker 2 is in its last step, which waits until worker 1 is in its last."""
    if step == steps - 1:
        gates.open(f"last-{worker}")
    if worker == 1 and step == 0:
        gates.wait("last-2")
    if worker == 2 and step == steps - 1:
        gates.wait("last-1")


def _drive_server(rank, world_size, server, start, layout, steps, lr, mode, gate, folder) -> dict:
    """Inside a rank: serve or work; what came back, and with which weights the gradient was called."""
    gates, calls = _Gates(folder), []
    weights = laid_out(start if rank == 0 else np.full_like(start, np.nan), layout)
    before = weights.numpy().copy()

    def gradient(w, worker, step):
        calls.append((worker, step, w.detach().numpy().copy()))
        slope = torch.from_numpy(_slope(w.detach().numpy(), worker, step))
        gate(gates, worker, step, steps, world_size - 1)
        return slope

    result, error = None, ""
    try:
        result = server(rank, world_size, weights, gradient, steps, lr, mode)
    except ValueError as raised:
        error = str(raised) or "no text"
    shared = isinstance(result, tuple) and isinstance(result[0], torch.Tensor) and shares_memory(result[0], [weights])
    return {
        "result": _plain(result),
        "calls": calls,
        "error": error,
        "shared": shared,
        "gave up": gates.gave_up,
        "changed": not np.array_equal(before, weights.numpy(), equal_nan=True),
    }


def _plain(result: Any) -> Any:
    """What a rank returned, as arrays, lists and numbers; anything else by the name of its type."""
    if not (isinstance(result, tuple | list) and len(result) == 2):
        return None if result is None else type(result).__name__
    weights, log = result
    weights = weights.detach().numpy().copy() if isinstance(weights, torch.Tensor) else type(weights).__name__
    entries = [tuple(entry) for entry in log] if isinstance(log, list | tuple) else []
    good = all(len(entry) == 3 and all(type(number) is int for number in entry) for entry in entries)
    return [weights, entries if good else "no list of (worker, step, staleness), three ints each"]


def _serve(case, parameter_server, world_size, start, layout, steps, lr, mode, gate) -> tuple:
    """Run the server, and check what must hold in every mode.

    Returns (rank 0's weights, its log, the weights that gradient was called with by (worker, step), whether a gate was
    waited for in vain, the ledger).
    """
    with tempfile.TemporaryDirectory(prefix="gates-") as folder:
        arguments = (parameter_server, start, layout, steps, lr, mode, gate, folder)
        results = run_ranks(_drive_server, world_size, arguments)
    _expect_only_messages(case, results.ledger)
    weights, log = _expect_returned(case, results, start)
    calls = [[call[:2] for call in result["calls"]] for result in results]
    for number, (rank, made) in enumerate(each_rank(case, calls)):
        wanted = [(number, step) for step in range(steps)] if number else []
        rank.expect(made == wanted, f"gradient was called with (worker, step) = {made}, expected {wanted}")
    for rank, result in each_rank(case, results, evidence=lambda result: [result["changed"], result["shared"]]):
        rank.expect(not result["changed"], "the weights that were passed in were changed: work on a copy")
        rank.expect(not result["shared"], "the weights that were passed in were returned: work on a copy")
    seen = {call[:2]: call[2] for result in results for call in result["calls"]}
    return weights, log, seen, any(result["gave up"] for result in results), results.ledger


def _expect_returned(case: str, results: Any, start: np.ndarray) -> tuple[np.ndarray, list]:
    """Rank 0's (weights, log): a tensor like `start` and a list. The workers returned None."""
    for number, (rank, result) in enumerate(each_rank(case, results, evidence=lambda result: result["error"])):
        rank.expect(not result["error"], f"a ValueError was raised: {result['error']}")
        if number:
            rank.expect_equal(result["result"], None, what="what a worker returns", evidence=["returned", number])
    returned = results[0]["result"]
    if isinstance(returned, str | None) or isinstance(returned[0], str):
        fail("rank 0 must return (weights, log), a tensor and a list", case, ["returned", 0])
    weights, log = returned
    if isinstance(log, str):
        fail(f"the log is {log}", case, ["log", log])
    got, wanted = [[str(array.dtype), array.shape] for array in (weights, start)]
    expect_equal(case, got, wanted, what="[dtype, shape] of the weights")
    return weights, log


def _expect_only_messages(case: str, ledger: Any) -> None:
    others = sorted({message.call for message in ledger if message.is_collective})
    if others:
        fail(f"{others[0]} was called, but only send and receive are allowed", case, others)


def _expect_server_bytes(case: str, ledger: Any, steps: int, nbytes: int) -> None:
    """A worker sends `steps` gradients, the server at most one more than that to each worker."""
    workers = ledger.world_size - 1
    for rank, spent in enumerate(ledger.bytes_sent()):
        most = (steps if rank else workers * (steps + 1)) * (nbytes + HEADER)
        if spent > most:
            # Which rank sent too much is the same in every run; how much need not be.
            fail(f"rank {rank} sent {spent} bytes, {most} are enough", case, ["bytes", rank])


@check("07-ex5-parameter-server", points=2)
def sync_server_is_one_process(parameter_server, *, rng):
    """Each round is one update with the mean of all workers' gradients at the same weights, logged in their order."""
    for world_size, shape, layout, dtype, gate in [
        (2, (5,), "", "float64", _no_gate),
        (4, (2, 3), "transposed", "float64", _late_first),
        (3, (40,), "", "float32", _no_gate),
    ]:
        case = f"sync, {count_of_ranks(world_size)}, shape {shape}, {dtype}"
        start, steps, lr = np.asarray(rng.normal(size=shape), dtype), 3, 0.3
        arguments = (start, layout, steps, lr, "sync", gate)
        weights, log, seen, _, ledger = _serve(case, parameter_server, world_size, *arguments)
        workers, rtol = range(1, world_size), 1e-12 if dtype == "float64" else 1e-5
        w = start.astype(np.float64)
        for step in range(steps):
            for worker in workers:
                used, what = seen[worker, step], f"what worker {worker} computes with in round {step}"
                why = f"all workers compute with the weights after {step} rounds"
                expect_close(case, used, w, what=what, rtol=rtol, atol=1e-6, because=why, evidence=[used, step, worker])
            grads = [_slope(seen[worker, step], worker, step).astype(np.float64) for worker in workers]
            w = w - lr * np.mean(grads, axis=0)
        expected = [(worker, step, 0) for step in range(steps) for worker in workers]
        if log != expected:
            # In which other order the pushes were logged may differ from run to run.
            shuffled = sorted(log) == sorted(expected)
            got = "in another order" if shuffled else [list(entry) for entry in log]
            fail(f"the log is {log}, expected {expected}", case, got)
        expect_close(case, weights, w, what="the result", rtol=rtol, because="it is w − lr · mean in each round")
        _expect_server_bytes(case, ledger, steps, start.nbytes)


def _expect_replay(case, start, weights, log, seen, steps, lr, world_size, evidence) -> None:
    """The log names every push once, in each worker's order; its staleness names the weights that were used."""
    wanted = {(worker, step) for worker in range(1, world_size) for step in range(steps)}
    got = [entry[:2] for entry in log]
    if len(got) != len(wanted) or set(got) != wanted:
        text = f"the log has {len(got)} entries for {len(set(got))} different pushes, expected {len(wanted)}"
        fail(text, case, ["pushes", evidence])
    for worker in range(1, world_size):
        order = [step for who, step in got if who == worker]
        if order != sorted(order):
            fail(f"worker {worker}'s steps are logged in the order {order}", case, ["order", evidence])
    versions = [start]
    for number, (worker, step, staleness) in enumerate(log):
        if not 0 <= staleness <= number:
            text = f"entry {number} says staleness {staleness}, but {number} updates were applied before it"
            fail(text, case, ["staleness", evidence])
        used = seen[worker, step]
        if not np.allclose(used, versions[number - staleness], rtol=1e-12, atol=1e-12):
            says = f"the gradient of (worker {worker}, step {step}) was computed from other weights"
            text = f"entry {number} says staleness {staleness}, but {says} than those of {staleness} updates before"
            fail(text, case, ["weights used", evidence])
        versions.append(versions[-1] - lr * _slope(used, worker, step))
    why = "replaying the log, w ← w − lr · g for each entry, ends there"
    how = {"rtol": 1e-12, "atol": 1e-12, "because": why, "evidence": ["end", evidence]}
    expect_close(case, weights, versions[-1], what="the weights at the end", **how)


@check("07-ex5-parameter-server", points=0.5)
def async_with_one_worker_is_one_process(parameter_server, *, rng):
    """With one worker no other changes the weights: staleness 0 throughout, and w ← w − lr·g in each step."""
    case, steps, lr, start = "async, 2 ranks, 4 steps", 4, 0.3, rng.normal(size=(3, 2))
    weights, log, seen, _, ledger = _serve(case, parameter_server, 2, start, "transposed", steps, lr, "async", _no_gate)
    evidence = [weights, [list(entry) for entry in log]]
    if any(entry[2] for entry in log):
        text = "with one worker no other changes the weights, but the log says staleness"
        fail(f"{text} {[entry[2] for entry in log]}", case, ["staleness", evidence])
    _expect_replay(case, start, weights, log, seen, steps, lr, 2, evidence)
    _expect_server_bytes(case, ledger, steps, start.nbytes)


@check("07-ex5-parameter-server", points=0.5)
def async_makes_no_worker_wait_for_another(parameter_server, *, rng):
    """Worker 1's first gradient waits until worker 2's last step: the run ends, and this push's staleness says so."""
    steps, lr, start = 4, 0.3, rng.normal(size=6)
    case = "async, 3 ranks, worker 1 waits for worker 2's last step, which waits for worker 1's last"
    run = _serve(case, parameter_server, 3, start, "", steps, lr, "async", _one_waits)
    weights, log, seen, gave_up, ledger = run
    if gave_up:
        text = "the server made one worker wait for the other one's push"
        fail(text, case, ["lock-step"])
    # The gates force all but the order of the last two pushes, and with it the staleness of these two.
    forced = log[:-2]
    evidence = [[list(entry) for entry in forced], [seen.get(entry[:2], "not asked for") for entry in forced]]
    first = next((entry for entry in log if entry[:2] == (1, 0)), (1, 0, -1))
    _expect_replay(case, start, weights, log, seen, steps, lr, 3, evidence)
    if first[2] < steps - 1:
        text = f"worker 1's first push has staleness {first[2]}, but worker 2 made {steps - 1} in the meantime"
        fail(text, case, ["too fresh", evidence])
    _expect_server_bytes(case, ledger, steps, start.nbytes)


@check("07-ex5-parameter-server", points=0.5)
def async_log_replays_to_the_weights(parameter_server, *, rng):
    """Several workers at their own speed: applying the gradients in the order of the log gives the weights."""
    case, steps, lr, start = "async, 4 ranks, 6 steps", 6, 0.3, rng.normal(size=5)
    weights, log, seen, _, ledger = _serve(case, parameter_server, 4, start, "", steps, lr, "async", _no_gate)
    # No two runs are alike, so nothing of this one is evidence but what was wrong with it.
    _expect_replay(case, start, weights, log, seen, steps, lr, 4, "several workers")
    _expect_server_bytes(case, ledger, steps, start.nbytes)


@check("07-ex5-parameter-server", points=0.5)
def server_refuses_what_cannot_work(parameter_server, *, rng):
    """One rank, or another mode, raises a ValueError that names the argument, on every rank, before any message."""
    start = rng.normal(size=3)
    alone = [(1, "sync", "world_size"), (1, "async", "world_size")]
    for world_size, mode, name in [*alone, (2, "sync", ""), (3, "lazy", "mode"), (3, "Sync", "mode")]:
        case = f"{count_of_ranks(world_size)}, mode {mode!r}"
        if not name:
            weights, *_ = _serve(case, parameter_server, world_size, start, "", 1, 0.1, mode, _no_gate)
            expected = start - 0.1 * _slope(start, 1, 0)
            expect_close(case, weights, expected, what="the result", rtol=1e-12)
            continue
        results = run_ranks(_drive_server, world_size, (parameter_server, start, "", 1, 0.1, mode, _no_gate, "."))
        for rank, result in each_rank(case, results, evidence=lambda result: bool(result["error"])):
            error = result["error"]
            rank.expect(error, "no ValueError was raised", "nothing raised")
            rank.expect(name in error, f"the ValueError should name {name!r}, but it says {error!r}", "not named")
        if results.ledger:
            fail("messages were sent before the ValueError", case, "sent first")
