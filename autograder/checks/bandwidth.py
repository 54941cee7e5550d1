"""Lesson 07: what cheaper gradients must still be, and what they may cost.

Compression is compared entry for entry with numpy's sorting; error feedback with the sum of all gradients, in
small whole numbers bit for bit; DDP with the hook with N residuals kept in one process; the server's log is
replayed; the loss scaler walks beside `torch.amp.GradScaler`; the benchmark's runs are repeated in one process.

Asynchronous runs differ from one to the next, so what is kept as evidence of them is what every run shares:
with one worker everything, and with two workers what a schedule of gates forces.

Every rank imports this module. Therefore scipy and scikit-learn, which take a second, are imported where they are used.
"""

from __future__ import annotations

import copy
import math
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from autograder.checking.check import check
from autograder.checking.expect import as_array, expect_close, expect_raises, expect_unchanged, fail
from autograder.checking.stage import call_inside, run_ranks

GATHERS = ("all_gather", "all_gather_single", "all_gather_into_tensor")
DTYPES = {"float16": torch.float16, "float32": torch.float32, "float64": torch.float64}
#: Bytes that a message of the server may have beside its numbers: a step number, a request.
HEADER = 16
#: How long a gated worker waits before it goes on all the same, in seconds.
PATIENCE = 5.0


# ---- inputs and comparisons that several exercises share ----


def _kept(numel: int, ratio: float) -> int:
    """How many entries top-k keeps."""
    return min(numel, max(1, math.floor(ratio * numel)))


def _distinct(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Numbers of both signs whose magnitudes all differ; the larger half of them more often negative."""
    numel = math.prod(shape)
    signs = np.where(np.arange(numel) % 3 == 0, 1.0, -1.0)
    return np.asarray((rng.permutation((np.arange(numel) + 1) * signs) / 8.0).reshape(shape), dtype)


def _laid_out(array: np.ndarray, layout: str) -> torch.Tensor:
    """`array` as a tensor: contiguous, as the transpose of one that is, or as every second element of a larger one."""
    x = torch.from_numpy(array.copy())
    if layout == "transposed":
        return x.t().contiguous().t()
    return torch.stack([x, torch.full_like(x, 99.0)], dim=-1)[..., 0] if layout == "strided" else x


def _pair(case: str, got: Any, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray]:
    """(values, indices) as arrays, when they are two 1-D tensors of the right dtypes and of the same length."""
    if not (isinstance(got, tuple | list) and len(got) == 2 and all(isinstance(part, torch.Tensor) for part in got)):
        fail(f"expected a pair of tensors (values, indices), got {type(got).__name__}", case, type(got).__name__)
    values, indices = got
    shapes = (tuple(values.shape), tuple(indices.shape))
    if values.dim() != 1 or indices.dim() != 1 or len(values) != len(indices):
        fail(f"values and indices must be 1-D and equally long, they have the shapes {shapes}", case, shapes)
    if values.dtype != dtype or indices.dtype != torch.int64:
        dtypes = (str(values.dtype), str(indices.dtype))
        fail(f"values must be {dtype} and indices torch.int64, got {dtypes[0]} and {dtypes[1]}", case, dtypes)
    return values.detach().numpy().copy(), indices.numpy().copy()


def _expect_largest(case: str, values: np.ndarray, indices: np.ndarray, flat: np.ndarray, ratio: float) -> None:
    """k distinct places of `flat`, its entries there, and none left that is larger than one that was taken."""
    k, got = _kept(flat.size, ratio), [values, indices]
    if len(values) != k:
        fail(f"{len(values)} of {flat.size} entries with ratio {ratio}, expected {k}", case, got)
    if not k:
        return
    if indices.min() < 0 or indices.max() >= flat.size or len(set(indices.tolist())) != k:
        fail(f"indices must be different places in 0…{flat.size - 1}, got {indices.tolist()}", case, got)
    wrong = np.flatnonzero(values != flat[indices])
    if wrong.size:
        at = int(wrong[0])
        there = f"grad.reshape(-1)[{indices[at]}] is {flat[indices[at]]}"
        fail(f"values[{at}] is {values[at]}, but {there}", case, got)
    largest = np.sort(np.abs(flat))[::-1][:k]
    if np.any(np.sort(np.abs(values))[::-1] != largest):
        fail(f"entry {largest[-1]} by magnitude was left out for a smaller one", case, got)


def _shares_memory(tensor: torch.Tensor, others: list[torch.Tensor]) -> bool:
    taken = {other.untyped_storage().data_ptr() for other in others if other.numel()}
    return bool(tensor.numel()) and tensor.untyped_storage().data_ptr() in taken


def _residual_step(residual: np.ndarray, grad: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """What top-k with error feedback sends of the flat `grad`, as a dense vector, and what it keeps."""
    corrected = residual + grad
    sent = np.zeros_like(corrected)
    largest = np.argsort(-np.abs(corrected), kind="stable")[:k]
    sent[largest] = corrected[largest]
    return sent, corrected - sent


# ---- 1 · top_k_compress, top_k_decompress ----


@check("07-ex1-top-k")
def top_k_takes_the_largest(top_k_compress, *, rng):
    """k entries of largest magnitude, signed, at their places in reading order, in memory of their own."""
    shapes = [((12,), ""), ((4, 6), "transposed"), ((4, 6), ""), ((3, 2, 4), "strided"), ((), ""), ((1,), "")]
    shapes += [((0,), ""), ((3, 0), ""), ((37,), "")]
    for shape, layout in shapes:
        for ratio, dtype in ((0.25, "float32"), (2.0**-6, "float64"), (1.0, "float32"), (0.5, "float16")):
            case = f"{layout} shape {shape}, {dtype}, ratio {ratio}".strip()
            array = _distinct(rng, shape, dtype)
            grad = _laid_out(array, layout)
            got = top_k_compress(grad, ratio)
            values, indices = _pair(case, got, DTYPES[dtype])
            _expect_largest(case, values, indices, array.reshape(-1), ratio)
            expect_unchanged(case, array, grad.numpy(), what="grad")
            if _shares_memory(got[0], [grad]) or _shares_memory(got[1], [grad]):
                fail("values share their memory with grad: whoever changes one changes the other", case, "shared")
    ties = np.asarray(rng.permutation([2.0, -2.0, 2.0, 1.0, -1.0, 0.0, 0.0, 2.0]))
    for ratio in (0.25, 0.5, 0.75, 1.0):
        case = f"entries of the same magnitude, ratio {ratio}"
        values, indices = _pair(case, top_k_compress(torch.from_numpy(ties.copy()), ratio), torch.float64)
        _expect_largest(case, values, indices, ties, ratio)


@check("07-ex1-top-k")
def top_k_refuses_a_ratio(top_k_compress, *, rng):
    """A ratio outside (0, 1] is a ValueError that names it."""
    grad = torch.from_numpy(rng.normal(size=8))
    for ratio in (0.0, -0.5, 1.5, 2):
        expect_raises(f"ratio {ratio}", top_k_compress, grad, ratio, error=ValueError, mentions="ratio")


@check("07-ex1-top-k")
def decompress_puts_values_back(top_k_decompress, *, rng):
    """The values at their places, zero elsewhere, in the dtype of the values and the shape that was asked."""
    for shape, k, dtype in [
        ((7,), 3, "float32"),
        ((3, 4), 5, "float64"),
        ((2, 3, 2), 12, "float16"),
        ((), 1, "float64"),
        ((0, 3), 0, "float32"),
        ((2, 2), 0, "float64"),
    ]:
        case = f"{k} values of {dtype} into shape {shape}"
        numel = math.prod(shape)
        values = torch.from_numpy(_distinct(rng, (numel,), dtype)[:k].copy())
        indices = torch.from_numpy(rng.permutation(numel)[:k].astype(np.int64))
        inputs = values.clone(), indices.clone()
        got = top_k_decompress(values, indices, torch.Size(shape) if k % 2 else shape)
        expected = np.zeros(numel, dtype)
        expected[indices.numpy()] = values.numpy()
        if isinstance(got, torch.Tensor) and got.dtype != values.dtype:
            fail(f"the result is {got.dtype}, expected {values.dtype}, as the values", case, str(got.dtype))
        expect_close(case, got, expected.reshape(shape), what="the decompressed tensor", rtol=0.0)
        for name, before, after in zip(("values", "indices"), inputs, (values, indices), strict=True):
            expect_unchanged(case, before.numpy(), after.numpy(), what=name)
        if isinstance(got, torch.Tensor) and _shares_memory(got, [values]):
            fail("the result shares its memory with values", case, "shared")


@check("07-ex1-top-k")
def decompress_refuses_what_does_not_fit(top_k_decompress, *, rng):
    """Different lengths, or an index outside the shape, are a ValueError that names the indices."""
    values = torch.from_numpy(rng.normal(size=3))
    for case, many, places in [
        ("one index too few", 3, [0, 4]),
        ("one value only for two indices", 1, [0, 4]),
        ("an index equal to the number of elements", 3, [0, 6, 1]),
        ("a negative index", 3, [0, -1, 1]),
    ]:
        arguments = (values[:many], torch.tensor(places), (2, 3))
        expect_raises(case, top_k_decompress, *arguments, error=ValueError, mentions="indices")


# ---- 2 · ErrorFeedback ----


class _Fed:
    """An ErrorFeedback beside which the gradients that it was given are kept."""

    def __init__(self, ErrorFeedback: Any, ratio: float):  # noqa: N803
        self.feedback, self.given = ErrorFeedback(ratio), []

    def compress(self, key: Any, array: np.ndarray, layout: str) -> tuple[Any, Any]:
        """What the feedback makes of a gradient, and its residuals, as copies."""
        self.given.append(_laid_out(array, layout))
        sent = _copied(self.feedback.compress(key, self.given[-1]))
        return sent, _copied(getattr(self.feedback, "residual", None))

    def afterwards(self, key: Any) -> tuple[list[np.ndarray], bool]:
        """The gradients as they are now; does the residual share memory with one of them?"""
        return [grad.numpy().copy() for grad in self.given], _shares_memory(self.feedback.residual[key], self.given)


def _copied(value: Any) -> Any:
    """Tensors by copies, in the lists, tuples and dicts that they are in; all else as it is."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if type(value) is list or isinstance(value, tuple):
        return (list if type(value) is list else tuple)(map(_copied, value))
    return value


def _residual_of(case: str, residual: Any, key: Any, grad: torch.Tensor) -> np.ndarray:
    if not isinstance(residual, dict):
        fail(f".residual must be a dict, got {type(residual).__name__}", case, type(residual).__name__)
    kept = residual.get(key)
    if not isinstance(kept, torch.Tensor) or kept.shape != grad.shape or kept.dtype != grad.dtype:
        what = f"{tuple(kept.shape)}, {kept.dtype}" if isinstance(kept, torch.Tensor) else type(kept).__name__
        wanted = f"a tensor of shape {tuple(grad.shape)} and dtype {grad.dtype}"
        fail(f".residual[{key!r}] must be {wanted}, got {what}", case, what)
    return kept.detach().numpy().copy()


@check("07-ex2-error-feedback")
def feedback_loses_nothing(ErrorFeedback, *, rng):  # noqa: N803
    """In each step the largest of gradient plus residual; sent + residual = sum of all gradients."""
    for shape, layout, ratio, whole in [
        ((16,), "", 0.25, True),
        ((4, 6), "transposed", 0.125, True),
        ((3, 5), "", 2.0**-6, False),
        ((2, 3, 4), "strided", 0.5, False),
        ((7,), "", 1.0, True),
        ((), "", 0.5, False),
        ((0, 3), "", 0.5, False),
    ]:
        dtype = "float32" if whole else "float64"
        case = f"{layout} shape {shape}, ratio {ratio}, {'whole numbers' if whole else 'float64'}".strip()
        feedback, numel = call_inside(_Fed, ErrorFeedback, ratio), math.prod(shape)
        before, sent, total, handed_in, history = np.zeros(shape, dtype), np.zeros(numel), np.zeros(shape), [], []
        for _ in range(6):
            array = rng.integers(-9, 10, shape) if whole else rng.normal(size=shape) + 0.3
            array = np.asarray(array, dtype)
            grad = torch.from_numpy(array)
            handed_in.append(array)
            got, residual = feedback.compress("w", array, layout)
            values, indices = _pair(case, got, grad.dtype)
            kept = _residual_of(case, residual, "w", grad)
            history += [values, indices, kept]
            corrected = np.asarray(array + before, dtype)
            _expect_largest(case, values, indices, corrected.reshape(-1), ratio)
            sent[indices] += values
            total += array
            # Six sums of numbers of order 1 in float64 are off by a few 1e-16; whole numbers are exact.
            rest = total.reshape(-1) - sent
            wrong = np.abs(kept.reshape(-1) - rest) > (0 if whole else 1e-12)
            if np.any(wrong):
                at = int(np.flatnonzero(wrong)[0])
                says = f"{sent[at]:.6g} was sent of entry {at} and {kept.reshape(-1)[at]:.6g} is kept"
                fail(f"{says}, but the gradients add up to {total.reshape(-1)[at]:.6g}", case, history)
            before = kept
        now, shares = feedback.afterwards("w")
        for array, grad in zip(handed_in, now, strict=True):
            expect_unchanged(case, array, grad, what="a gradient that was handed in")
        if shares:
            fail("the residual shares its memory with a gradient", case, "shared")


@check("07-ex2-error-feedback")
def feedback_keeps_keys_and_objects_apart(ErrorFeedback, *, rng):  # noqa: N803
    """Each key and each object has a residual of its own; a key can be anything hashable."""
    objects = [call_inside(_Fed, ErrorFeedback, ratio) for ratio in (0.25, 0.5)]
    keys = {0: (8,), 1: (8,), "layer.weight": (2, 4), (3, "b"): (4,)}
    sums = [{key: np.zeros(shape) for key, shape in keys.items()} for _ in objects]
    history, residuals = [], [{}, {}]
    for step in range(4):
        for number, feedback in enumerate(objects):
            for key, shape in keys.items():
                case = f"object {number}, key {key!r}, step {step}"
                grad = torch.from_numpy(rng.integers(-9, 10, shape).astype(np.float64))
                got, residuals[number] = feedback.compress(key, grad.numpy(), "")
                values, indices = _pair(case, got, grad.dtype)
                kept = _residual_of(case, residuals[number], key, grad)
                history += [values, kept]
                if len(values) != _kept(grad.numel(), (0.25, 0.5)[number]):
                    fail(f"{len(values)} entries were sent", case, history)
                total = sums[number][key].reshape(-1)
                total += grad.numpy().reshape(-1)
                total[indices] -= values  # what is still to be sent
                if not np.array_equal(total, kept.reshape(-1)):
                    text = "what was sent and what is kept do not add up to this key's gradients of this object"
                    fail(text, case, history)
    for residual in residuals:
        if set(residual) != set(keys):
            places = sorted(map(repr, residual))
            fail(f".residual has the keys {places}", "the keys at the end", places)


# ---- 3 · top_k_hook ----


class _Feedback:
    """The checker's own error feedback, so that this exercise does not hang on the one before it."""

    def __init__(self, ratio: float):
        self.ratio, self.residual, self.calls = ratio, {}, []

    def compress(self, key: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls.append((key if isinstance(key, int | str) else repr(key), tuple(grad.shape)))
        flat = grad.detach().reshape(-1)
        corrected = flat + self.residual[key].reshape(-1) if key in self.residual else flat.clone()
        indices = corrected.abs().topk(_kept(flat.numel(), self.ratio)).indices
        values = corrected[indices]
        corrected[indices] = 0
        self.residual[key] = corrected.view(grad.shape)
        return values, indices


class _Net(nn.Module):
    """Three layers of the same shape, used in another order than they are listed in; the first is frozen."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.last = nn.Linear(64, 64, dtype=dtype)
        self.frozen = nn.Linear(64, 64, dtype=dtype)
        self.first = nn.Linear(64, 64, bias=False, dtype=dtype)
        self.middle = nn.Linear(64, 64, dtype=dtype)
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (B, 64) → (B, 64)."""
        return self.last(torch.tanh(self.middle(torch.tanh(self.frozen(torch.tanh(self.first(x)))))))


def _net(seed: int, dtype: torch.dtype) -> _Net:
    generator = torch.Generator().manual_seed(seed)
    net = _Net(dtype)
    with torch.no_grad():
        for param in net.parameters():
            param.copy_(torch.randn(param.shape, generator=generator, dtype=torch.float64) / 8)
    return net


def _step_gradients(net: nn.Module, x: np.ndarray, dtype: torch.dtype) -> list[np.ndarray | None]:
    for param in net.parameters():
        param.grad = None
    net(torch.from_numpy(x).to(dtype)).square().mean().mul(50).backward()
    return [None if param.grad is None else param.grad.numpy().copy() for param in _params(net)]


def _params(net: nn.Module) -> list[nn.Parameter]:
    return list((net.module if isinstance(net, DistributedDataParallel) else net).parameters())


def _descend(net: nn.Module, grads: list[np.ndarray | None]) -> None:
    with torch.no_grad():
        for param, grad in zip(_params(net), grads, strict=True):
            if grad is not None:
                param -= 0.1 * torch.from_numpy(grad).to(param.dtype)


def _drive_hook(rank, world_size, hook, seed, x, ratio, cap, dtype, plain) -> dict:
    """Inside a rank: train with DDP and the hook; the gradients of each step, the keys, and the residuals."""
    ddp = DistributedDataParallel(_net(seed, dtype), bucket_cap_mb=cap)
    feedback = _Feedback(ratio)
    if not plain:
        ddp.register_comm_hook((feedback, _params(ddp)), hook)
    steps, calls = [], []
    for batch in x[rank]:
        steps.append(_step_gradients(ddp, batch, dtype))
        _descend(ddp, steps[-1])
        calls.append(sorted(feedback.calls, key=repr))
        feedback.calls.clear()
    return {"steps": steps, "calls": calls}


def _expected_gradients(seed: int, x: np.ndarray, ratio: float, dtype: torch.dtype) -> list[list[np.ndarray | None]]:
    """One process that keeps N residuals for each parameter."""
    net, residuals, steps = _net(seed, dtype), defaultdict(float), []
    for step in range(x.shape[1]):
        means: list[np.ndarray | None] = [None] * len(_params(net))
        for rank in range(len(x)):
            for place, grad in enumerate(_step_gradients(net, x[rank, step], dtype)):
                if grad is None:
                    continue
                k = _kept(grad.size, ratio)
                sent, residuals[rank, place] = _residual_step(residuals[rank, place], grad.reshape(-1), k)
                share = sent.reshape(grad.shape) / len(x)
                means[place] = share if means[place] is None else means[place] + share
        _descend(net, means)
        steps.append(means)
    return steps


def _hook_runs(rng, top_k_hook, world_size: int, ratio: float, cap: float, dtype: torch.dtype, steps: int = 6, **kind):
    seed, x = int(rng.integers(2**31)), rng.normal(size=(world_size, steps, 4, 64))
    arguments = (seed, x, ratio, cap, dtype)
    return arguments, run_ranks(_drive_hook, world_size, (top_k_hook, *arguments, kind.get("plain", False)))


@check("07-ex3-top-k-hook")
def hook_follows_one_process(top_k_hook, *, rng):
    """Six steps with N ranks give the gradients of one process with N residuals, with one bucket and with many."""
    for world_size, cap, ratio in [(2, 25, 0.0625), (3, 0.05, 0.25), (1, 0.05, 0.125), (2, 0.05, 2.0**-13)]:
        case = f"{world_size} ranks, bucket_cap_mb = {cap}, ratio {ratio}"
        (seed, x, *_), results = _hook_runs(rng, top_k_hook, world_size, ratio, cap, torch.float64)
        expected = _expected_gradients(seed, x, ratio, torch.float64)
        places = [place for place, grad in enumerate(expected[0]) if grad is not None]
        shapes = [tuple(expected[0][place].shape) for place in places]
        for step in range(x.shape[1]):
            for rank, result in enumerate(results):
                calls = [list(call) for call in result["calls"][step]]
                wanted = sorted([[place, shape] for place, shape in zip(places, shapes, strict=True)], key=repr)
                if calls != wanted:
                    keys = [call[0] for call in calls]
                    text = f"in step {step} rank {rank} compressed with the keys {keys}, expected {places} once each"
                    fail(text, case, [step, calls])
            # Every rank's evidence, but only some entries of it: comparing 16,000 in each of 6 steps is slow.
            got = [[grad.reshape(-1)[:256] for grad in result["steps"][step] if grad is not None] for result in results]
            for rank, result in enumerate(results):
                for place in places:
                    # float64: six steps of sums over at most 64 products round by less than 1e-12 of the largest.
                    mean, wanted = result["steps"][step][place], expected[step][place]
                    bound = 1e-10 * np.abs(wanted).max()
                    if mean.shape != wanted.shape or np.abs(mean - wanted).max() > bound:
                        at = np.unravel_index(np.argmax(np.abs(mean - wanted)), wanted.shape)
                        values = f"is {mean[at]:.6g} at {tuple(map(int, at))}, expected {wanted[at]:.6g}"
                        fail(f"step {step}, rank {rank}: the gradient of parameter {place} {values}", case, [step, got])


@check("07-ex3-top-k-hook")
def hook_sends_only_what_it_must(top_k_hook, *, rng):
    """At most the values and indices of each parameter go into all-gathers, and nothing else is called."""
    for world_size, ratio in [(2, 0.0625), (3, 2.0**-13)]:
        case = f"{world_size} ranks, ratio {ratio}"
        for dtype in (torch.float32, torch.float64):
            (seed, *_), results = _hook_runs(rng, top_k_hook, world_size, ratio, 0.05, dtype, steps=3)
            trained = [param for param in _net(seed, dtype).parameters() if param.requires_grad]
            most = 3 * sum(_kept(param.numel(), ratio) * (param.itemsize + 8) for param in trained)
            for rank in range(world_size):
                calls = sorted({m.call for m in results.ledger.of(rank)})
                others = [call for call in calls if call not in GATHERS]
                if others:
                    fail(f"rank {rank} called {others[0]}, only all-gathers are allowed", case, calls)
                spent = sum(message.bytes for message in results.ledger.of(rank))
                if spent > most:
                    text = f"in 3 steps rank {rank} put {spent} bytes of {dtype} gradients into its all-gathers"
                    fail(f"{text}, {most} are enough", case, [spent, calls])


@check("07-ex3-top-k-hook")
def hook_that_sends_everything_is_plain_ddp(top_k_hook, *, rng):
    """With ratio 1 the gradients are those of DDP without a hook, in float32 within 1e-6 of the largest."""
    for world_size in (1, 2):
        case = f"{world_size} ranks, ratio 1"
        seed = rng.bit_generator.state
        _, hooked = _hook_runs(rng, top_k_hook, world_size, 1.0, 25, torch.float32, steps=3)
        rng.bit_generator.state = seed
        _, plain = _hook_runs(rng, None, world_size, 1.0, 25, torch.float32, steps=3, plain=True)
        for rank in range(world_size):
            for step, grads in enumerate(plain[rank]["steps"]):
                for place, grad in enumerate(grads):
                    if grad is not None:
                        what = f"rank {rank}, step {step}: the gradient of parameter {place}"
                        expect_close(case, hooked[rank]["steps"][step][place], grad, what=what, rtol=1e-6)


# ---- 4 · parameter_server ----


def _slope(w: np.ndarray, worker: int, step: int) -> np.ndarray:
    """A gradient that depends on everything it is given, and on w by a curve."""
    return (np.tanh(w * worker) + 0.25 * np.cos(step + np.arange(w.size).reshape(w.shape) * worker)).astype(w.dtype)


class _Gates:
    """Marks that ranks set and wait for, as files; a wait that was in vain is remembered."""

    def __init__(self, folder: str):
        self.folder, self.gave_up = Path(folder), False

    def open(self, name: str) -> None:
        (self.folder / name).touch()

    def wait(self, name: str) -> None:
        until = time.monotonic() + PATIENCE
        while not (self.folder / name).exists():
            if time.monotonic() > until:
                self.gave_up = True
                return
            time.sleep(0.002)


def _no_gate(gates: _Gates, worker: int, step: int, steps: int, workers: int) -> None:
    """All workers at their own speed."""


def _late_first(gates: _Gates, worker: int, step: int, steps: int, workers: int) -> None:
    """Worker 1 is slower than worker 2, who is slower than worker 3: gradients arrive in falling order."""
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
    weights = _laid_out(start if rank == 0 else np.full_like(start, np.nan), layout)
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
    shared = isinstance(result, tuple) and isinstance(result[0], torch.Tensor) and _shares_memory(result[0], [weights])
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
    """Run the server; (weights, log, calls of all workers, gave up) after what must hold in every mode."""
    with tempfile.TemporaryDirectory(prefix="gates-") as folder:
        arguments = (parameter_server, start, layout, steps, lr, mode, gate, folder)
        results = run_ranks(_drive_server, world_size, arguments)
    _expect_only_messages(case, results.ledger)
    for rank, result in enumerate(results):
        if result["error"]:
            fail(f"rank {rank} raised ValueError: {result['error']}", case, ["raised", rank, result["error"]])
        if rank and result["result"] is not None:
            fail(f"rank {rank} is a worker and must return None, got {result['result']}", case, ["returned", rank])
    gave_up = any(result["gave up"] for result in results)
    if isinstance(results[0]["result"], str | None) or isinstance(results[0]["result"][0], str):
        fail("rank 0 must return (weights, log), a tensor and a list", case, ["returned", 0])
    weights, log = results[0]["result"]
    if isinstance(log, str):
        fail(f"the log is {log}", case, ["log", log])
    if weights.shape != start.shape or weights.dtype != start.dtype:
        fail(f"the weights are {weights.dtype} of shape {weights.shape}", case, [str(weights.dtype), weights.shape])
    calls = [[call[:2] for call in result["calls"]] for result in results]
    for rank, made in enumerate(calls):
        wanted = [(rank, step) for step in range(steps)] if rank else []
        if made != wanted:
            text = f"rank {rank} called gradient with (worker, step) = {made}, expected {wanted}"
            fail(text, case, ["calls", calls])
    for rank, result in enumerate(results):
        if result["changed"] or result["shared"]:
            what = "changed" if result["changed"] else "handed back as the result"
            fail(f"rank {rank}'s weights were {what}: work on a copy", case, ["weights", what])
    seen = {call[:2]: call[2] for result in results for call in result["calls"]}
    return weights, log, seen, gave_up, results.ledger


def _expect_only_messages(case: str, ledger: Any) -> None:
    others = sorted({message.call for message in ledger if message.is_collective})
    if others:
        fail(f"{others[0]} was called, but only send and receive are allowed", case, others)


def _expect_server_bytes(case: str, ledger: Any, steps: int, nbytes: int) -> None:
    """A worker sends `steps` gradients, the server at most one more than that to each worker."""
    sent, workers = ledger.bytes_sent(), ledger.world_size - 1
    for rank, spent in enumerate(sent):
        most = (steps if rank else workers * (steps + 1)) * (nbytes + HEADER)
        if spent > most:
            # Who sent too much is the same in every run; how much need not be.
            fail(f"rank {rank} sent {spent} bytes, {most} are enough", case, ["bytes", rank])


@check("07-ex4-parameter-server")
def sync_server_is_one_process(parameter_server, *, rng):
    """Each round is one update with the mean of all workers' gradients at the same weights, logged in their order."""
    for world_size, shape, layout, dtype, gate in [
        (2, (5,), "", "float64", _no_gate),
        (4, (2, 3), "transposed", "float64", _late_first),
        (3, (40,), "", "float32", _no_gate),
    ]:
        case = f"sync, {world_size} ranks, shape {shape}, {dtype}"
        start, steps, lr = np.asarray(rng.normal(size=shape), dtype), 3, 0.3
        arguments = (start, layout, steps, lr, "sync", gate)
        weights, log, seen, _, ledger = _serve(case, parameter_server, world_size, *arguments)
        workers = range(1, world_size)
        w = start.astype(np.float64)
        for step in range(steps):
            grads = [_slope(seen[worker, step], worker, step).astype(np.float64) for worker in workers]
            for worker in workers:
                if not np.allclose(seen[worker, step], w, rtol=1e-12 if dtype == "float64" else 1e-5, atol=1e-6):
                    text = f"round {step}: worker {worker} did not get the weights after {step} rounds"
                    fail(text, case, [seen[worker, step], step, worker])
            w = w - lr * np.mean(grads, axis=0)
        expected = [(worker, step, 0) for step in range(steps) for worker in workers]
        if log != expected:
            # In which other order the pushes were logged may differ from run to run.
            shuffled = sorted(log) == sorted(expected)
            got = "in another order" if shuffled else [list(entry) for entry in log]
            fail(f"the log is {log}, expected {expected}", case, got)
        rtol = 1e-12 if dtype == "float64" else 1e-5
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
    if not np.allclose(weights, versions[-1], rtol=1e-12, atol=1e-12):
        fail("replaying the log, w ← w − lr · g for each entry, ends at other weights", case, ["end", evidence])


@check("07-ex4-parameter-server")
def async_with_one_worker_is_one_process(parameter_server, *, rng):
    """With one worker nobody else changes the weights: staleness 0 throughout, and w ← w − lr·g in each step."""
    case, steps, lr, start = "async, 2 ranks, 4 steps", 4, 0.3, rng.normal(size=(3, 2))
    weights, log, seen, _, ledger = _serve(case, parameter_server, 2, start, "transposed", steps, lr, "async", _no_gate)
    evidence = [weights, [list(entry) for entry in log]]
    if any(entry[2] for entry in log):
        text = "with one worker nobody else changes the weights, but the log says staleness"
        fail(f"{text} {[entry[2] for entry in log]}", case, ["staleness", evidence])
    _expect_replay(case, start, weights, log, seen, steps, lr, 2, evidence)
    _expect_server_bytes(case, ledger, steps, start.nbytes)


@check("07-ex4-parameter-server")
def async_makes_no_worker_wait_for_another(parameter_server, *, rng):
    """Worker 1's first gradient waits until worker 2 is in its last step: the run ends, and the push is that stale."""
    steps, lr, start = 4, 0.3, rng.normal(size=6)
    case = "async, 3 ranks, worker 1 waits for worker 2's last step, which waits for worker 1's last"
    run = _serve(case, parameter_server, 3, start, "", steps, lr, "async", _one_waits)
    weights, log, seen, gave_up, ledger = run
    if gave_up:
        text = "a worker waited in vain for the other one to go on: the server made one wait for the other's push"
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


@check("07-ex4-parameter-server")
def async_log_replays_to_the_weights(parameter_server, *, rng):
    """Several workers at their own speed: applying the gradients in the order of the log gives the weights."""
    case, steps, lr, start = "async, 4 ranks, 6 steps", 6, 0.3, rng.normal(size=5)
    weights, log, seen, _, ledger = _serve(case, parameter_server, 4, start, "", steps, lr, "async", _no_gate)
    # No two runs are alike, so nothing of this one is evidence but what was wrong with it.
    _expect_replay(case, start, weights, log, seen, steps, lr, 4, "several workers")
    _expect_server_bytes(case, ledger, steps, start.nbytes)


@check("07-ex4-parameter-server")
def server_refuses_what_cannot_work(parameter_server, *, rng):
    """One rank alone, or another mode, is a ValueError that names the argument, on every rank, before any message."""
    start = rng.normal(size=3)
    for world_size, mode, name in [(1, "sync", "world_size"), (1, "async", "world_size"), (3, "lazy", "mode")]:
        case = f"{world_size} rank{'s' * (world_size > 1)}, mode {mode!r}"
        results = run_ranks(_drive_server, world_size, (parameter_server, start, "", 1, 0.1, mode, _no_gate, "."))
        for rank, result in enumerate(results):
            if not result["error"]:
                fail(f"rank {rank} raised no ValueError", case, "nothing raised")
            if name not in result["error"]:
                fail(f"the ValueError should name {name!r}, it says {result['error']!r}", case, "not named")
        if results.ledger:
            fail("messages were sent before the ValueError", case, "sent first")


# ---- 5 · LossScaler ----


class _Scaled:
    """A LossScaler with 16-bit parameters, their fp32 masters and an optimizer, as a training program has them."""

    def __init__(self, LossScaler: Any, settings: dict, start: list[torch.Tensor], dtype: torch.dtype, make: Any):  # noqa: N803
        self.scaler = LossScaler(**settings)
        self.masters = [nn.Parameter(master.clone()) for master in start]
        self.params = [nn.Parameter(master.detach().to(dtype)) for master in self.masters]
        self.optimizer = make(self.masters)

    def value(self) -> Any:
        """The factor."""
        return _copied(getattr(self.scaler, "value", None))

    def state(self) -> list:
        """Parameters, masters, and what the optimizer keeps."""
        return copy.deepcopy([[p.detach() for p in self.params + self.masters], self.optimizer.state_dict()])

    def step(self, grads: list[torch.Tensor | None]) -> tuple:
        """What step returned with these gradients, the gradients then, masters, parameters; the state before."""
        before = self.state()
        for param, grad in zip(self.params, grads, strict=True):
            param.grad = None if grad is None else grad.clone()
        stepped = _copied(self.scaler.step(self.optimizer, self.params, self.masters))
        masters = [m.detach().numpy().copy() for m in self.masters]
        return stepped, [_copied(p.grad) for p in self.params], masters, [_copied(p) for p in self.params], before


def _scale(LossScaler: Any, settings: dict, number: float, dtype: torch.dtype, half: bool) -> tuple:  # noqa: N803
    """A scaler's factor, what scale makes of a loss `number` in `dtype` or of half of it, the gradient through that."""
    scaler = LossScaler(**settings)
    x = torch.tensor(number, dtype=dtype, requires_grad=True)
    factor = _copied(getattr(scaler, "value", None))
    scaled = scaler.scale(x * 0.5 if half else x)
    if half:
        scaled.backward()
    return factor, _copied(scaled), _copied(x.grad)


def _start(rng: np.random.Generator, shapes: tuple) -> list[torch.Tensor]:
    """Masters to start from."""
    return [torch.from_numpy(np.asarray(rng.normal(size=shape), np.float32)) for shape in shapes]


def _value(case: str, value: Any) -> float:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if not isinstance(value, int | float | np.number) or isinstance(value, bool):
        fail(f".value must be a number, got {type(value).__name__}", case, type(value).__name__)
    return float(value)


def _stepped(case: str, result: Any) -> bool:
    if not isinstance(result, bool | np.bool_ | torch.Tensor):
        fail(f"step must return True or False, got {type(result).__name__}", case, ["returned", type(result).__name__])
    return bool(result)


@check("07-ex5-loss-scaler")
def scaler_scales_in_fp32(LossScaler, *, rng):  # noqa: N803
    """scale converts to fp32 first, so that a half-precision loss cannot overflow, and lets gradients through."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        case = f"a loss in {dtype}"
        loss = float(rng.integers(2, 9))
        factor, wide, _ = call_inside(_scale, LossScaler, {}, loss, dtype, False)
        if _value(case, factor) != 65536.0:
            fail(f"the factor starts at {factor}, expected 65536", case, ["start", _value(case, factor)])
        if not isinstance(wide, torch.Tensor) or wide.dtype != torch.float32 or wide.shape != ():
            fail("scale must return a 0-dim float32 tensor", case, ["kind", str(getattr(wide, "dtype", type(wide)))])
        _, scaled, through = call_inside(_scale, LossScaler, {"init_scale": 4096.0}, loss, dtype, True)
        got = [wide.item(), scaled.item()]
        if got != [65536.0 * loss, 2048.0 * loss]:
            fail(f"the loss {loss} times 65536 came out as {got[0]}", case, got)
        if through is None or through.item() != 2048.0:
            got = None if through is None else through.item()
            fail(f"backward through scale gave {got}, expected 2048", case, ["gradient", repr(got)])


def _walk(case, rng, LossScaler, settings, make, grads_of, steps, dtype=torch.float16) -> None:  # noqa: N803
    """A scaler beside torch's GradScaler on fp32 copies: factors, skips, masters, params and optimizer state."""
    start = _start(rng, ((3, 2), (4,)))
    twins = [nn.Parameter(master.clone()) for master in start]
    oracle_optimizer = make(twins)
    scaled = call_inside(_Scaled, LossScaler, settings, start, dtype, make)
    oracle = torch.amp.GradScaler("cpu", **settings)
    oracle.scale(torch.zeros(()))  # makes its scale
    history: list = []
    for step in range(steps):
        handed = []
        for twin, grad in zip(twins, grads_of(step), strict=True):
            handed.append(torch.from_numpy(np.asarray(grad * oracle.get_scale(), np.float32)).to(dtype))
            twin.grad = handed[-1].float()
        finite = all(bool(grad.isfinite().all()) for grad in handed)
        result, grads, masters, params, before = scaled.step(handed)
        stepped = _stepped(case, result)
        oracle.step(oracle_optimizer)
        oracle.update()
        value = _value(case, scaled.value())
        history += [stepped, value, *masters, *(_floats(p) for p in params)]
        if stepped != finite:
            fail(f"step {step}: returned {stepped}, the gradients are {'' if finite else 'not '}finite", case, history)
        if not math.isclose(value, oracle.get_scale(), rel_tol=1e-6):
            fail(f"after step {step} the factor is {value}, expected {oracle.get_scale()}", case, history)
        for number, (param, got, twin) in enumerate(zip(params, masters, twins, strict=True)):
            what = f"after step {step}, master {number}"
            wanted = twin.detach().numpy()
            # fp32: dividing by the factor and multiplying by its reciprocal differ by an ulp a step.
            if not np.allclose(got, wanted, rtol=1e-5, atol=1e-6):
                at = np.unravel_index(int(np.argmax(np.abs(got - wanted))), got.shape)
                fail(f"{what} is {got[at]:.6g}, expected {wanted[at]:.6g}", case, history)
            if not torch.equal(param, torch.from_numpy(got).to(dtype)):
                fail(f"{what} and the parameter do not agree: it must be the master, rounded", case, history)
            if not torch.equal(grads[number], handed[number]) and finite:
                fail(f"step {step}: the gradient of parameter {number} was changed", case, history)
        if not finite and not _same(before, scaled.state()):
            text = f"step {step} was to be skipped, but masters, params or the optimizer's state have changed"
            fail(text, case, history)


def _floats(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().float().numpy().copy()


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return isinstance(b, list | tuple) and len(a) == len(b) and all(map(_same, a, b))
    return a == b


@check("07-ex5-loss-scaler")
def scaler_follows_torch(LossScaler, *, rng):  # noqa: N803
    """Factors, skips, masters and optimizer state over many steps, as `torch.amp.GradScaler` has them."""
    makers = {
        "SGD": lambda params: torch.optim.SGD(params, lr=0.125),
        "Adam": lambda params: torch.optim.Adam(params, lr=0.05),
        "momentum": lambda params: torch.optim.SGD(params, lr=0.125, momentum=0.75),
    }
    patterns = {"growth": "......", "one overflow": "..x.....", "many": "x..xx.....x..."}
    for name, make in makers.items():
        for pattern, marks in patterns.items():
            case = f"{name}, growth_interval 3, {pattern}: {marks}"
            settings = {"init_scale": 256.0, "growth_interval": 3}
            if pattern == "many":
                settings |= {"growth_factor": 4.0, "backoff_factor": 0.25}

            def grads_of(step, marks=marks):
                grads = [np.round(rng.normal(size=shape) * 16) / 16 for shape in ((3, 2), (4,))]
                if marks[step] == "x":
                    grads[int(rng.integers(2))].flat[int(rng.integers(4))] = rng.choice([np.inf, -np.inf, np.nan])
                return grads

            dtype = torch.bfloat16 if pattern == "growth" else torch.float16
            _walk(case, rng, LossScaler, settings, make, grads_of, len(marks), dtype)


@check("07-ex5-loss-scaler")
def scaler_keeps_small_gradients(LossScaler, *, rng):  # noqa: N803
    """Gradients are divided in fp32, where what fp16 has no number for still counts; small updates add up."""
    case = "fp16 gradients of 2⁻²⁶ times a factor of 2¹⁶"
    [start] = _start(rng, ((5,),))
    whole = torch.from_numpy(rng.integers(1, 9, 5).astype(np.float32))
    scaled = call_inside(
        _Scaled, LossScaler, {}, [start], torch.float16, lambda masters: torch.optim.SGD(masters, lr=2.0**10)
    )
    for _ in range(4):
        _, _, [got], _, _ = scaled.step([(whole * 2.0**-10).half()])
    expected = start - 4 * whole * 2.0**-16
    # Four fp32 subtractions of numbers of order 1: at most 4 · 2⁻²⁴ · 4.
    expect_close(case, got, expected.numpy(), what="the master", rtol=0.0, atol=2e-6)


@check("07-ex5-loss-scaler")
def scaler_skips_whatever_is_not_finite(LossScaler, *, rng):  # noqa: N803
    """inf, −inf and NaN, in whichever gradient; and nothing else, though a sum of finite numbers may overflow."""
    for name, numbers, finite in [
        ("an inf in the first gradient", ([np.inf, 1.0], [1.0, 1.0]), False),
        ("a −inf in the last gradient", ([1.0, 1.0], [1.0, -np.inf]), False),
        ("a NaN in the first gradient", ([1.0, np.nan], [1.0, 1.0]), False),
        ("a NaN in the last gradient", ([1.0, 1.0], [np.nan, 1.0]), False),
        ("inf and −inf", ([np.inf, -np.inf], [1.0, 1.0]), False),
        ("the largest fp16 numbers, all positive", ([65504.0, 65504.0], [65504.0, 65504.0]), True),
        ("zeros", ([0.0, 0.0], [0.0, 0.0]), True),
    ]:
        start, grads = _start(rng, ((2,), (2,))), [torch.tensor(grad, dtype=torch.float16) for grad in numbers]
        settings = {"init_scale": 65536.0}
        scaled = call_inside(
            _Scaled, LossScaler, settings, start, torch.float16, lambda masters: torch.optim.SGD(masters, lr=0.5)
        )
        expected = [m - 0.5 * g.float() / 65536.0 if finite else m for m, g in zip(start, grads, strict=True)]
        result, _, got, _, _ = scaled.step(grads)
        stepped = _stepped(name, result)
        value = _value(name, scaled.value())
        evidence = [stepped, value, *got]
        if stepped != finite or value != (65536.0 if finite else 32768.0):
            fail(f"{name}: step returned {stepped}, and the factor is then {value}", name, evidence)
        for mine, wanted in zip(got, expected, strict=True):
            if not np.allclose(mine, wanted.numpy(), rtol=1e-6, atol=1e-7):
                fail(f"{name}: the masters are {mine.tolist()}, expected {wanted.tolist()}", name, evidence)


@check("07-ex5-loss-scaler")
def scaler_passes_none_on(LossScaler, *, rng):  # noqa: N803
    """A parameter without a gradient leaves its master without one, so that the optimizer does not touch it."""
    for name, make in {
        "SGD with momentum": lambda masters: torch.optim.SGD(masters, lr=0.5, momentum=0.5),
        "SGD with weight decay": lambda masters: torch.optim.SGD(masters, lr=0.5, weight_decay=0.5),
    }.items():
        start = _start(rng, ((2,), (3,)))
        scaled, before = call_inside(_Scaled, LossScaler, {"init_scale": 8.0}, start, torch.float16, make), None
        for step in range(3):
            case = f"{name}, step {step}: {'both have gradients' if step == 0 else 'the second has none'}"
            grads = [torch.from_numpy(rng.normal(size=size)).half() for size in (2, 3)]
            result, _, masters, _, _ = scaled.step([grads[0], grads[1] if step == 0 else None])
            stepped = _stepped(case, result)
            got = [stepped, *masters]
            if not stepped:
                fail("the step was skipped, although every gradient that is there is finite", case, got)
            if step and not np.array_equal(before, got[2]):
                fail("the master of the parameter without a gradient has changed", case, got)
            before = masters[1]


# ---- 6 · benchmark ----


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
    got = [[[mean, nbytes] for mean, nbytes, _ in mine] for mine in outcomes]
    for rank, mine in enumerate(outcomes):
        for step, (mean, nbytes, unchanged) in enumerate(mine):
            where = f"rank {rank}, step {step}"
            if mean is None or mean.dtype != expected.dtype or mean.shape != expected[step].shape:
                kind = "no tensor" if mean is None else f"{mean.dtype} of shape {mean.shape}"
                text = f"the mean is {kind}, expected {expected.dtype} of shape {expected[step].shape}"
                fail(f"{where}: {text}", case, ["kind", kind])
            bound = rtol * np.abs(expected[step]).max()
            wrong = np.abs(mean - expected[step])
            if not wrong.max() <= bound:
                at = int(np.argmax(wrong))
                text = f"the mean's entry {at} is {mean[at]:.6g}, expected {expected[step][at]:.6g}"
                fail(f"{where}: {text}", case, got)
            if not math.isclose(nbytes, sent, rel_tol=1e-9):
                fail(f"{where}: {nbytes} bytes reported, the formula gives {sent}", case, got)
            if not unchanged:
                fail(f"{where}: the gradient that was handed in has changed", case, ["changed", step])


@check("07-ex6-benchmark")
def all_reduce_exchange_is_a_mean(AllReduceExchange, *, rng):  # noqa: N803
    """The mean over the ranks, in the dtype on the wire; 2(N−1)/N · numel · itemsize bytes, by one all-reduce."""
    for world_size in (1, 2, 3):
        names, cases = [], []
        wires = [("float32", None), ("float64", None), ("float32", torch.bfloat16), ("float32", torch.float16)]
        for kind, wire in wires:
            grads = rng.normal(size=(world_size, 2, 20)).astype(kind)
            cases.append(({"dtype": wire} if wire else {}, grads))
            names.append(f"{world_size} ranks, {kind} gradients" + (f", {wire}" if wire else ""))
        outcomes, messages = _exchanged(names, AllReduceExchange, world_size, cases)
        for case, (keywords, grads), mine, sent in zip(names, cases, outcomes, messages, strict=True):
            wire = keywords.get("dtype")
            itemsize = wire.itemsize if wire else grads.itemsize
            # Rounding to bf16 keeps 8 bits, to fp16 11; N inputs and N sums are rounded, each at most to 4 deviations.
            rtol = {None: 1e-6, torch.bfloat16: 2.0**-5, torch.float16: 2.0**-8}[wire]
            expected = grads.astype(np.float64).mean(axis=0).astype(grads.dtype)
            _expect_exchange(case, mine, expected, 2 * (world_size - 1) / world_size * 20 * itemsize, rtol)
            for rank in range(world_size):
                calls = [[message.call, message.bytes] for message in sent[rank]]
                alone = world_size == 1 and not calls  # one rank has nothing to send
                if not alone and calls != [["all_reduce", 20 * itemsize]] * 2:
                    text = f"in 2 steps rank {rank} called (with bytes) {calls}"
                    fail(f"{text}, expected one all_reduce of {20 * itemsize} bytes in each", case, calls)


@check("07-ex6-benchmark")
def top_k_exchange_is_a_mean_of_what_was_sent(TopKExchange, *, rng):  # noqa: N803
    """N residuals in one process give the same means; the bytes reported are those of the all-gathers, N − 1 times."""
    for world_size in (1, 2, 3):
        names, cases = [], []
        for kind, ratio, feedback in [("float64", 0.125, True), ("float32", 0.25, False), ("float64", 1.0, True)]:
            cases.append(
                ({"ratio": ratio, "feedback": feedback}, rng.normal(size=(world_size, 4, 20)).astype(kind) + 0.2)
            )
            names.append(f"{world_size} ranks, {kind}, ratio {ratio}, {'with' if feedback else 'without'} feedback")
        cases = [(keywords, np.asarray(grads, grads.dtype)) for keywords, grads in cases]
        outcomes, messages = _exchanged(names, TopKExchange, world_size, cases)
        for case, (keywords, grads), mine, sent in zip(names, cases, outcomes, messages, strict=True):
            k, expected = _kept(20, keywords["ratio"]), np.zeros_like(grads[0])
            for rank in range(world_size):
                residual = np.zeros(20)
                for step in range(4):
                    own, rest = _residual_step(residual, grads[rank, step].astype(np.float64), k)
                    residual = rest if keywords["feedback"] else residual
                    expected[step] += (own / world_size).astype(grads.dtype)
            nbytes = k * (grads.itemsize + 8)
            _expect_exchange(case, mine, expected, (world_size - 1) * nbytes, 1e-6)
            for rank in range(world_size):
                calls = sorted({message.call for message in sent[rank]})
                total = sum(message.bytes for message in sent[rank])
                if set(calls) - set(GATHERS) or (world_size > 1 and total != 4 * nbytes):
                    text = f"in 4 steps rank {rank} put {total} bytes into {', '.join(calls) or 'no call'}"
                    fail(f"{text}, expected {4 * nbytes} into all-gathers", case, [total, calls])


class _Weighted:
    """A factory of the checker's: a mean that weighs rank r by r + 1, and bytes that depend on rank and step."""

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
    """Examples that no plane separates: labels drawn by a coin whose bias depends on x. Sorted, so shards matter."""
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
    """One process that does what `_Weighted` makes of the ranks' gradients."""
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
    if [row["name"] for row in got] != names:
        fail(f"the names are {[row['name'] for row in got]}, expected {names}", case, [str(row["name"]) for row in got])
    return got


def _number(case: str, row: dict, key: str) -> float:
    value = as_array(case, row[key], key)
    if value.shape != ():
        fail(f"{key} should be one number, it has shape {value.shape}", case, [key, value])
    return float(value)


@check("07-ex6-benchmark")
def benchmark_trains_as_it_says(benchmark, *, rng):
    """Rank r's exchange gets the gradient of rows r::N at w; w starts at 0 for each strategy; `steps` updates."""
    for world_size, steps, lr in [(2, 1, 0.5), (3, 7, 0.25), (1, 4, 1.0)]:
        case = f"{world_size} ranks, {steps} steps, lr {lr}"
        x, y = _problem(rng)
        given = x.copy(), y.copy()
        rows = _rows(case, benchmark({"a": _Weighted, "b": _Weighted}, *given, world_size, steps, lr), ["a", "b"])
        expected = _trained(x, y, world_size, steps, lr)
        for row in rows:
            # Gradients rounded to float32, 2⁻²⁴ of numbers of order 1, in at most 7 steps of lr ≤ 1.
            expect_close(case, row["weights"], expected, what=f"strategy {row['name']}: weights", rtol=1e-5, atol=1e-6)
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
        case = f"{world_size} ranks, {steps} steps"
        got = benchmark({"weighted": _Weighted}, x.copy(), y.copy(), world_size, steps, 0.4)
        (row,) = _rows(case, got, ["weighted"])
        weights = as_array(case, row["weights"], "weights").astype(np.float64)
        if weights.shape != (x.shape[1],):
            fail(f"weights have shape {weights.shape}, expected ({x.shape[1]},)", case, weights)
        numbers = {key: _number(case, row, key) for key in ("bytes_per_step", "loss_gap", "auc")}
        expected = {
            "bytes_per_step": 1000.0 * world_size + (steps + 1) / 2,
            "loss_gap": _loss(x, y, weights) - best,
            "auc": _auc(x, y, weights),
        }
        for key, number in numbers.items():
            # The smallest loss is known to about 1e-10; sums of 211 numbers round by less.
            if not abs(number - expected[key]) <= 1e-8:
                text = f"{key} is {number:.8g}, expected {expected[key]:.8g}"
                fail(text + (" for these weights on all rows" if key != "bytes_per_step" else ""), case, numbers)


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
