"""Exercise 7: an asynchronous parameter server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checks.cases import Case, close, fact, sentence
from autograder.checks.check import check

SERVER = "07-ex7-parameter-server"
LR = 0.25
#: float32, over some thirty updates.
ERROR = 1e-4


def _steps(pushes: Any) -> Any:
    """What all runs have in common: in which order which worker pushed differs from one to the next."""
    return sorted(step for _, step in pushes) if isinstance(pushes, list) else None


@dataclass
class Served:
    """What a rank did: the server its weights and its log, a worker what it computed with."""

    odd: str = sentence()
    pushes: Any = fact("the sorted list of [worker, step] in the log", seen=_steps)
    off: float = fact(
        "the largest distance of an entry at the end from w − lr · (all pushes)", seen=lambda d: d > ERROR
    )
    stale: str = fact("", seen=bool)
    more: int = fact("how many messages came after this worker's last push")
    weights: Any = None
    log: list = field(default_factory=list)
    used: list = field(default_factory=list)


ALL_WELL = Served("")


def _slope(w: np.ndarray, worker: int, step: int) -> np.ndarray:
    """A gradient that depends on the worker and the step, and on w along a curve."""
    return (np.tanh(w * worker) + 0.25 * np.cos(step + np.arange(w.size) * worker)).astype(np.float32)


def _drive(rank: int, world_size: int, serve_async: Any, start: np.ndarray, steps: int, gated: bool) -> Served:
    done, last = Served("", [], 0, "", 0), torch.full((len(start),), torch.nan)
    if rank > 0:
        pulled = torch.empty(len(start))
        done.used = _work(rank, pulled, steps, gated)
        while not pulled.isnan().all():
            dist.recv(pulled, src=0)
            done.more += 1
        done.more -= 1  # the last is not the answer's
        return done
    result = serve_async(torch.from_numpy(start.copy()), world_size, steps, LR)
    for worker in range(1, world_size):
        dist.send(last, dst=worker)
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], torch.Tensor)):
        done.odd = f"what is returned is no pair (weights, log), but {type(result).__name__}"
        return done
    done.weights, done.log = result[0].detach().numpy().copy(), [list(entry) for entry in result[1]]
    return done


def _work(rank: int, pulled: torch.Tensor, steps: int, gated: bool) -> list[np.ndarray]:
    """A worker as the notebook has it: the weights that it pulled.

    Gated, worker 1's first push waits for worker 2's last step, and that for worker 1's last.
    """
    used, token = [], torch.zeros(1)
    for step in range(steps):
        dist.recv(pulled, src=0)
        used.append(pulled.numpy().copy())
        if gated and step == steps - 1:
            dist.send(token, dst=3 - rank)
        if gated and (rank, step) in ((1, 0), (2, steps - 1)):
            dist.recv(token, src=3 - rank)
        dist.send(torch.from_numpy(_slope(used[-1], rank, step)), dst=0)
    return used


def _judged(start: np.ndarray) -> Any:
    """What sees the results of all ranks: the log, replayed with the weights that the workers pulled."""

    def sees(results: list[Served]) -> list[Served]:
        server, used = results[0], [one.used for one in results[1:]]
        if server.odd:
            return results
        if odd := [e for e in server.log if len(e) != 3 or any(not isinstance(number, int) for number in e)]:
            server.odd = f"the log has {odd[0]}, expected (worker, step, staleness), three ints"
            return results
        pushed = [_slope(w, worker + 1, step) for worker, mine in enumerate(used) for step, w in enumerate(mine)]
        server.off = float(np.abs(server.weights - (start - LR * np.sum(pushed, axis=0, dtype=np.float64))).max())
        server.pushes = sorted(entry[:2] for entry in server.log)
        server.stale = _stale(server.log, start, used, server.off < ERROR)
        return results

    return sees


def _stale(log: list, start: np.ndarray, used: list[list[np.ndarray]], applied: bool) -> str:
    """The first entry with a wrong staleness; "" for none. applied: are the weights at the end right?"""
    versions, pulled = [start.astype(np.float64)], [0] * len(used)  # by worker, the version that it was sent last
    counts = [0] * len(used)
    for number, (worker, _, staleness) in enumerate(log):
        if not 1 <= worker <= len(used) or counts[worker - 1] == len(used[worker - 1]):
            return f"entry {number} of the log is a push of worker {worker}, which it did not make"
        lies, claimed = number - pulled[worker - 1], number - staleness
        step = counts[worker - 1]
        weights = used[worker - 1][step]
        fits = 0 <= claimed <= number and np.allclose(weights, versions[claimed], rtol=ERROR, atol=ERROR)
        if claimed != pulled[worker - 1] and not (applied and fits):
            words = f"{lies} update{' lies' if lies == 1 else 's lie'} between this worker's pull and push"
            return f"entry {number} of the log says staleness {staleness}, but {words}"
        if applied and not fits:
            return f"worker {worker} did not get for its step {step} the weights after {claimed} updates of the log"
        versions.append(versions[-1] - LR * _slope(weights, worker, step))
        counts[worker - 1], pulled[worker - 1] = step + 1, number + 1
    return ""


def _case(serve: Any, rng: np.random.Generator, n: int, steps: int, server: Served = ALL_WELL,
          worker: Served = ALL_WELL, gated: bool = False, **how: Any) -> Case:  # fmt: skip
    start = rng.normal(size=int(rng.integers(4, 9))).astype(np.float32)
    name = f"{steps} steps" + gated * ", worker 1 waits for worker 2's last step, which waits for worker 1's last"
    args = (serve, start, steps, gated)
    return Case(name, n, _drive, args, [server] + [worker] * (n - 1), sees=_judged(start), **how)


@check(SERVER, points=1.25)
def each_push_is_applied_once(serve_async, *, rng):
    """The weights at the end are those that were given, minus lr times all pushes, and the log has each push."""
    for n, steps in ((2, 4), (4, int(rng.integers(2, 6))), (3, 1)):
        pushes = [[worker, step] for worker in range(1, n) for step in range(steps)]
        yield _case(serve_async, rng, n, steps, Served("", pushes, close(0.0, atol=ERROR)))


@check(SERVER, points=0.75)
def staleness_is_what_lies_between(serve_async, *, rng):
    """The log is in the order of the updates, and says how many of them lay between a worker's pull and its push."""
    for n in (2, 3, 4):
        yield _case(serve_async, rng, n, int(rng.integers(5, 10)), Served("", stale=""))


@check(SERVER, points=0.5)
def who_is_done_gets_nothing(serve_async, *, rng):
    """After its last push, nothing more is sent to a worker."""
    for n in (2, 4):
        yield _case(serve_async, rng, n, int(rng.integers(2, 5)), worker=Served("", more=0))


@check(SERVER, points=0.5)
def no_worker_waits_for_another(serve_async, *, rng):
    """A worker that waits for another worker's last step holds up nobody: the run ends."""
    must = "No worker may wait for another one's push."
    yield _case(serve_async, rng, 3, int(rng.integers(3, 6)), gated=True, must=must)
