"""Lesson 07, exercise 6: exchanges side by side, in bytes and in loss."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checking.check import check
from autograder.checking.expect import (
    as_array,
    count_of_ranks,
    each_rank,
    expect_close,
    expect_equal,
    expect_unchanged,
    fail,
)
from autograder.checking.stage import run_ranks
from autograder.checks.bandwidth.common import GATHERS, count_kept, residual_step


def _drive_exchange(rank, world_size, factory, cases) -> list:
    """Inside a rank: for each case a fresh exchange, called on one gradient after the other."""
    outcomes = []
    for keywords, grads in cases:
        dist.barrier()
        exchange, mine = factory(rank, world_size, **keywords), []
        for grad in grads[rank]:
            given = torch.from_numpy(grad.copy())
            mean, sent = exchange(given)
            unchanged = np.array_equal(given.numpy(), grad)
            mine.append((mean.numpy().copy() if isinstance(mean, torch.Tensor) else None, float(sent), unchanged))
        outcomes.append(mine)
    dist.barrier()
    return outcomes


def _exchanged(case_names, factory, world_size, cases) -> tuple[list, list]:
    """What the exchanges returned, [case][rank][step], and the messages of each case, [case][rank]."""
    results = run_ranks(_drive_exchange, world_size, (factory, cases))
    messages = [[[] for _ in range(world_size)] for _ in cases]
    for rank in range(world_size):
        number = -1
        for message in sorted(results.ledger.of(rank), key=lambda m: m.posted):
            if message.call == "barrier":
                number += 1
            elif number < len(cases):
                messages[number][rank].append(message)
        if number != len(cases):
            fail("barrier was called, which is not needed", case_names[0], "barrier")
    return [[mine[c] for mine in results] for c in range(len(cases))], messages


def _expect_exchange(case: str, outcomes: list, expected: np.ndarray, sent: float, rtol: float) -> None:
    """Every rank's mean in every step, its dtype, the bytes reported, and the input left alone."""
    wanted = f"{expected.dtype} of shape {expected[0].shape}"
    for rank, mine in each_rank(case, outcomes, evidence=lambda steps: [[mean, nbytes] for mean, nbytes, _ in steps]):
        for step, (mean, nbytes, unchanged) in enumerate(mine):
            kind = "no tensor" if mean is None else f"{mean.dtype} of shape {mean.shape}"
            rank.expect(kind == wanted, f"the mean in step {step} is {kind}, expected {wanted}", ["kind", kind])
            rank.expect_close(mean, expected[step], what=f"the mean in step {step}", rtol=rtol)
            right = math.isclose(nbytes, sent, rel_tol=1e-9)
            rank.expect(right, f"{nbytes} bytes were reported in step {step}, the formula gives {sent}")
            rank.expect(unchanged, f"the gradient passed in step {step} was changed", ["changed", step])


@check("07-ex6-benchmark")
def all_reduce_exchange_is_a_mean(AllReduceExchange, *, rng):  # noqa: N803
    """The mean over the ranks, in the dtype on the wire; 2(N−1)/N · numel · itemsize bytes, by one all-reduce."""
    for world_size in (1, 2, 3):
        names, cases = [], []
        wires = [("float32", None), ("float64", None), ("float32", torch.bfloat16), ("float32", torch.float16)]
        for kind, wire in wires:
            grads = rng.normal(size=(world_size, 2, 20)).astype(kind)
            cases.append(({"dtype": wire} if wire else {}, grads))
            names.append(f"{count_of_ranks(world_size)}, {kind} gradients" + (f", {wire}" if wire else ""))
        outcomes, messages = _exchanged(names, AllReduceExchange, world_size, cases)
        for case, (keywords, grads), mine, sent in zip(names, cases, outcomes, messages, strict=True):
            wire = keywords.get("dtype")
            itemsize = wire.itemsize if wire else grads.itemsize
            # Rounding to bf16 keeps 8 bits, to fp16 11; N inputs and N sums are rounded, each at most to 4 deviations.
            rtol = {None: 1e-6, torch.bfloat16: 2.0**-5, torch.float16: 2.0**-8}[wire]
            expected = grads.astype(np.float64).mean(axis=0).astype(grads.dtype)
            _expect_exchange(case, mine, expected, 2 * (world_size - 1) / world_size * 20 * itemsize, rtol)
            called = [[[message.call, message.bytes] for message in mine] for mine in sent]
            for rank, calls in each_rank(case, called):
                if calls or world_size > 1:  # one rank alone has nothing to send
                    rank.expect_equal(calls, [["all_reduce", 20 * itemsize]] * 2, what="[call, bytes] in 2 steps")


@check("07-ex6-benchmark")
def top_k_exchange_is_a_mean_of_what_was_sent(TopKExchange, *, rng):  # noqa: N803
    """N residuals in one process give the same means; the bytes reported are those of the all-gathers, N − 1 times."""
    for world_size in (1, 2, 3):
        names, cases = [], []
        for kind, ratio, feedback in [("float64", 0.125, True), ("float32", 0.25, False), ("float64", 1.0, True)]:
            grads = (rng.normal(size=(world_size, 4, 20)) + 0.2).astype(kind)
            cases.append(({"ratio": ratio, "feedback": feedback}, grads))
            how = "with" if feedback else "without"
            names.append(f"{count_of_ranks(world_size)}, {kind}, ratio {ratio}, {how} feedback")
        outcomes, messages = _exchanged(names, TopKExchange, world_size, cases)
        for case, (keywords, grads), mine, sent in zip(names, cases, outcomes, messages, strict=True):
            k = count_kept(20, keywords["ratio"])
            nbytes = k * (grads.itemsize + 8)
            _expect_exchange(case, mine, _mean_of_sent(grads, k, keywords["feedback"]), (world_size - 1) * nbytes, 1e-6)
            spent = [[sum(m.bytes for m in mine), sorted({m.call for m in mine})] for mine in sent]
            for rank, (total, calls) in each_rank(case, spent):
                gathers = set(calls) <= set(GATHERS) and (world_size == 1 or total == 4 * nbytes)
                put = f"{total} bytes were put into {', '.join(calls) or 'no call'} in 4 steps"
                rank.expect(gathers, f"{put}, expected {4 * nbytes} into all-gathers")


def _mean_of_sent(grads: np.ndarray, k: int, feedback: bool) -> np.ndarray:
    """The oracle for gradients [rank, step, entry]: the mean over the ranks of what top-k sends, [step, entry]."""
    mean = np.zeros_like(grads[0])
    for steps in grads:
        residual = np.zeros(grads.shape[-1])
        for step, grad in enumerate(steps):
            own, rest = residual_step(residual, grad.astype(np.float64), k)
            residual = rest if feedback else residual
            mean[step] += (own / len(grads)).astype(grads.dtype)
    return mean


class _Weighted:
    """An exchange of the check's own: its mean weighs rank r by r + 1, its bytes depend on rank and step."""

    def __init__(self, rank: int, world_size: int):
        self.rank, self.world_size, self.step = rank, world_size, 0

    def __call__(self, grad: Any) -> tuple[torch.Tensor, float]:
        if not isinstance(grad, torch.Tensor) or grad.dtype != torch.float32 or grad.dim() != 1:
            kind = f"{getattr(grad, 'dtype', type(grad).__name__)} of shape {tuple(np.shape(grad))}"
            raise TypeError(f"exchange was called with {kind}, expected a float32 tensor of shape (d,)")
        parts = [torch.empty_like(grad) for _ in range(self.world_size)]
        dist.all_gather(parts, grad)
        weights = range(1, self.world_size + 1)
        self.step += 1
        mean = sum(weight * part for weight, part in zip(weights, parts, strict=True)) / sum(weights)
        return mean, 1000.0 * (self.rank + 1) + self.step


def _problem(rng: np.random.Generator, rows: int = 211, d: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Examples that no plane separates: each label is a coin toss whose bias depends on x."""
    x = rng.normal(size=(rows, d))
    p = 1 / (1 + np.exp(0.5 - x @ rng.normal(size=d)))
    y = (rng.random(rows) < 0.1 + 0.8 * p).astype(np.float64)
    return x, y


def _loss(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> float:
    import scipy.special

    z = x @ w
    return float(-np.mean(y * scipy.special.log_expit(z) + (1 - y) * scipy.special.log_expit(-z)))


def _slope_of_loss(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    import scipy.special

    return x.T @ (scipy.special.expit(x @ w) - y) / len(y)


def _least_loss(x: np.ndarray, y: np.ndarray) -> float:
    import scipy.optimize

    found = scipy.optimize.minimize(
        lambda w: _loss(x, y, w), np.zeros(x.shape[1]), jac=lambda w: _slope_of_loss(x, y, w), tol=1e-10
    )
    return float(found.fun)


def _auc(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> float:
    """The chance that a positive example scores higher than a negative one: Mann and Whitney's U."""
    import scipy.stats

    scores, positive = scipy.stats.rankdata(x @ w), y > 0.5
    n, m = int(positive.sum()), int((~positive).sum())
    return float((scores[positive].sum() - n * (n + 1) / 2) / (n * m))


def _trained(x: np.ndarray, y: np.ndarray, world_size: int, steps: int, lr: float) -> np.ndarray:
    """The weights after `steps` updates in one process, with the ranks' gradients weighed as `_Weighted` does."""
    w, shares = np.zeros(x.shape[1]), np.arange(1, world_size + 1)
    for _ in range(steps):
        grads = [_slope_of_loss(x[r::world_size], y[r::world_size], w) for r in range(world_size)]
        w = w - lr * np.average(grads, axis=0, weights=shares)
    return w


def _rows(case: str, got: Any, names: list[str]) -> list[dict]:
    keys = {"name", "bytes_per_step", "steps_per_second", "loss_gap", "auc", "weights"}
    if not isinstance(got, list) or not all(isinstance(row, dict) for row in got):
        fail(f"benchmark must return a list of dicts, got {type(got).__name__}", case, type(got).__name__)
    for row in got:
        if not keys <= set(row):
            fail(f"a row has the keys {sorted(row)}, expected {sorted(keys)}", case, sorted(map(str, row)))
    expect_equal(case, [str(row["name"]) for row in got], names, what="the list of names")
    return got


def _number(case: str, row: dict, key: str) -> float:
    value = as_array(case, row[key], key)
    expect_equal(case, value.shape, (), what=f"the shape of {key}", because="it is one number", evidence=[key, value])
    return float(value)


@check("07-ex6-benchmark")
def benchmark_trains_as_it_says(benchmark, *, rng):
    """Rank r's exchange gets the gradient of rows r::N at w; w starts at 0 for each strategy; `steps` updates."""
    for world_size, steps, lr in [(2, 1, 0.5), (3, 7, 0.25), (1, 4, 1.0)]:
        case = f"{count_of_ranks(world_size)}, {steps} steps, lr {lr}"
        x, y = _problem(rng)
        given = x.copy(), y.copy()
        rows = _rows(case, benchmark({"a": _Weighted, "b": _Weighted}, *given, world_size, steps, lr), ["a", "b"])
        expected = _trained(x, y, world_size, steps, lr)
        for row in rows:
            # Gradients rounded to float32, 2⁻²⁴ of numbers of order 1, in at most 7 steps of lr ≤ 1.
            what = f"strategy {row['name']}: the vector of weights"
            expect_close(case, row["weights"], expected, what=what, rtol=1e-5, atol=1e-6)
            speed = _number(case, row, "steps_per_second")
            if not (math.isfinite(speed) and speed > 0):
                fail(f"steps_per_second is {speed}", case, "no speed")
        expect_unchanged(case, x, given[0], what="x")
        expect_unchanged(case, y, given[1], what="y")


@check("07-ex6-benchmark")
def benchmark_reports_bytes_and_loss(benchmark, *, rng):
    """Bytes: the mean over the steps of the rank that sent most. loss_gap and auc: of the weights, on all rows."""
    x, y = _problem(rng)
    best = _least_loss(x, y)
    for world_size, steps in [(3, 4), (2, 9)]:
        case = f"{count_of_ranks(world_size)}, {steps} steps"
        got = benchmark({"weighted": _Weighted}, x.copy(), y.copy(), world_size, steps, 0.4)
        (row,) = _rows(case, got, ["weighted"])
        weights = as_array(case, row["weights"], "weights").astype(np.float64)
        expect_equal(case, weights.shape, (x.shape[1],), what="the shape of weights", evidence=weights)
        numbers = {key: _number(case, row, key) for key in ("bytes_per_step", "loss_gap", "auc")}
        expected = {
            "bytes_per_step": 1000.0 * world_size + (steps + 1) / 2,
            "loss_gap": _loss(x, y, weights) - best,
            "auc": _auc(x, y, weights),
        }
        for key, number in numbers.items():
            # The smallest loss is known to about 1e-10; sums of 211 numbers round by less.
            why = "" if key == "bytes_per_step" else "it is that of these weights on all rows"
            right = np.asarray(expected[key])
            expect_close(case, number, right, what=key, rtol=0.0, atol=1e-8, because=why, evidence=numbers)


@check("07-ex6-benchmark")
def feedback_ends_nearer(benchmark, TopKExchange, *, rng):  # noqa: N803
    """On the lesson's data, top-2 of 20 with error feedback ends with a smaller loss gap than without."""
    from sklearn.datasets import make_classification

    shape = {"n_samples": 20_000, "n_features": 20, "n_informative": 10}
    x, y = make_classification(**shape, weights=[0.94], flip_y=0, class_sep=0.5, random_state=42)
    x, y = (x - x.mean(axis=0)) / x.std(axis=0), y.astype(np.float64)
    case = "top-2 of 20, 4 ranks, 25 steps"
    names = ["with", "without"]
    got = benchmark({name: _TopTwo(TopKExchange, name == "with") for name in names}, x, y, 4, 25)
    gaps = [_number(case, row, "loss_gap") for row in _rows(case, got, names)]
    if not 0 <= gaps[0] < gaps[1]:
        fail(f"the loss gap is {gaps[0]:.2e} with feedback and {gaps[1]:.2e} without", case, gaps)


class _TopTwo:
    """The student's top-k exchange with a ratio, as a factory that can be sent to the ranks."""

    def __init__(self, exchange: Any, feedback: bool):
        self.exchange, self.feedback = exchange, feedback

    def __call__(self, rank: int, world_size: int) -> Any:
        return self.exchange(rank, world_size, ratio=0.125, feedback=self.feedback)
