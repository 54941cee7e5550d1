"""Exercise 1: attention over a block of keys, and two parts merged."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from autograder.checking.check import check
from autograder.checking.expect import expect_close, expect_equal, fail

BLOCKS = "13-ex1-blocks"
#: Of the largest entry, for standard normal q and k.
RTOL = {"float32": 5e-6, "float64": 1e-13}


def reference(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, q_positions: np.ndarray, k_positions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(out, lse), query by query in float64, over the allowed keys alone."""
    out, lse = np.zeros(q.shape), np.full(q.shape[:-1], -math.inf)
    for b, h, i in np.ndindex(q.shape[:-1]):
        keys = np.flatnonzero(k_positions <= q_positions[i])
        if len(keys):
            scores = k[b, h, keys] @ q[b, h, i] / math.sqrt(q.shape[-1])
            top = scores.max()
            shares = np.exp(scores - top)
            lse[b, h, i] = top + math.log(shares.sum())
            out[b, h, i] = shares @ v[b, h, keys] / shares.sum()
    return out, lse


def _finite(x: torch.Tensor) -> np.ndarray:
    """Evidence: large numbers in place of inf and nan."""
    return np.nan_to_num(x.detach().double().numpy(), neginf=-9e99, posinf=9e99, nan=7e99)


@dataclass(frozen=True)
class Case:
    """Queries and keys with their positions. scale: of q, for large scores. negative: is every score below 0?"""

    name: str
    shape: tuple[int, int, int]
    q_positions: np.ndarray
    k_positions: np.ndarray
    dtype: str = "float64"
    strided: bool = False
    scale: float = 1.0
    negative: bool = False

    def tensors(self, rng: np.random.Generator) -> list[torch.Tensor]:
        """q, k and v; strided: every second number of a larger tensor, so not contiguous."""
        batch, heads, width = self.shape
        found = []
        for length in (len(self.q_positions), len(self.k_positions), len(self.k_positions)):
            numbers = rng.standard_normal((batch, heads, length, width))
            if self.negative and len(found) < 2:
                numbers = np.abs(numbers) * (-1 if found else 1)
            if not found:
                numbers *= self.scale
            tensor = torch.from_numpy(numbers).to(getattr(torch, self.dtype))
            found.append(tensor.transpose(1, 2).contiguous().transpose(1, 2) if self.strided else tensor)
        return found


def _cases(rng: np.random.Generator) -> list[Case]:
    mixed = rng.permutation(20)
    first, second = np.sort(mixed[:7]), mixed[7:16]
    return [
        Case("8 positions in order", (2, 3, 4), np.arange(8), np.arange(8)),
        Case("8 positions in order, float32", (1, 2, 6), np.arange(8), np.arange(8), "float32"),
        Case("positions in any order", (2, 2, 4), second, first),
        Case("strided memory", (2, 3, 4), first, second, strided=True),
        Case("keys later than some queries", (1, 2, 4), np.array([3, 0, 9]), np.array([5, 8, 4])),
        Case("neither ascends", (1, 2, 4), np.array([9, 3, 0]), np.array([8, 1, 5])),
        Case("positions of 2**60", (1, 2, 4), 2**60 + np.arange(5), 2**60 + np.arange(5)),
        Case("no key allowed", (1, 2, 4), np.array([0, 1]), np.array([5, 6, 7])),
        Case("no keys", (1, 2, 4), np.array([0, 1]), np.array([], np.int64)),
        Case("no queries", (1, 2, 4), np.array([], np.int64), np.array([0, 1])),
        Case("scores of 1e8", (1, 1, 4), np.arange(5), np.arange(5), scale=1e8),
        Case("scores of 1e8, float32", (1, 1, 4), np.arange(5), np.arange(5), "float32", scale=1e8),
        Case("scores of -1e8", (1, 1, 4), np.arange(5), np.arange(5), scale=1e8, negative=True),
    ]


def _pair(case: str, got: Any, what: str) -> tuple[torch.Tensor, torch.Tensor]:
    if not (isinstance(got, tuple | list) and len(got) == 2 and all(isinstance(x, torch.Tensor) for x in got)):
        fail(f"{what} should return two tensors (out, lse)", case, type(got).__name__)
    return got[0].detach(), got[1].detach()


def compare(case: str, got: Any, want: tuple[np.ndarray, np.ndarray], dtype: str, what: str, rtol: float) -> None:
    """Shapes, dtypes and numbers of (out, lse); where lse should be -inf, it is."""
    out, lse = _pair(case, got, what)
    kinds = [str(x.dtype)[6:] for x in (out, lse)]
    expect_equal(case, kinds, [dtype, dtype], what="the list of the dtypes of out and lse")
    expect_equal(case, list(lse.shape), list(want[1].shape), what="the shape of lse")
    empty = np.isneginf(want[1])
    evidence = [out.double().numpy(), _finite(lse)]
    if not np.array_equal(np.isneginf(lse.double().numpy()), empty):
        fail("lse should be -inf where no key is allowed, and nowhere else", case, evidence)
    both = np.where(empty, 0.0, lse.double().numpy())
    expect_close(case, out, want[0], what="out", rtol=rtol, atol=1e-300, evidence=evidence)
    expect_close(case, both, np.where(empty, 0.0, want[1]), what="lse", rtol=rtol, atol=rtol, evidence=evidence)


@check(BLOCKS, points=1.5)
def a_block_is_attention_over_its_keys(attend, *, rng):
    """out and lse are those of the keys up to each query's position, in any order."""
    for case in _cases(rng):
        q, k, v = case.tensors(rng)
        positions = torch.from_numpy(case.q_positions), torch.from_numpy(case.k_positions)
        want = reference(*(x.double().numpy() for x in (q, k, v)), case.q_positions, case.k_positions)
        got = attend(q, k, v, *positions)
        # Large scores: which of two keys is the larger is certain, their difference in float32 is not.
        rtol = max(RTOL[case.dtype], 1e-5 if case.scale > 1 and case.dtype == "float32" else 0.0)
        compare(case.name, got, want, case.dtype, "attend", rtol if case.scale == 1 else max(rtol, 1e-7))


@check(BLOCKS, points=1)
def merged_parts_are_the_whole(merge, *, rng):
    """Parts of the keys, however they are cut and in whatever order, merge to out and lse over all of them."""
    q_positions, k_positions = np.arange(9), np.arange(9)
    for dtype, count in itertools.product(("float64", "float32"), (2, 3, 5)):
        case = Case(f"{count} parts, {dtype}", (2, 2, 4), q_positions, k_positions, dtype)
        q, k, v = (x.double().numpy() for x in case.tensors(rng))
        parts = [np.sort(part) for part in np.array_split(rng.permutation(9), count)]
        parts.sort(key=lambda part: 0 in part)  # key 0 comes last: until then, the first row has no key in any part
        kind = getattr(torch, dtype)
        pieces = [reference(q, k[:, :, p], v[:, :, p], q_positions, p) for p in parts]
        tensors = [tuple(torch.from_numpy(x).to(kind) for x in piece) for piece in pieces]
        got = tensors[0]
        for piece in tensors[1:]:
            got = _pair(case.name, merge(*got, *piece), "merge")
        want = reference(q, k, v, q_positions, k_positions)
        compare(case.name, got, want, dtype, "merge", RTOL[dtype])
    large = [np.full((1, 1, 3), lse) for lse in (1e8, 1e8 - 1.0, -1e8)]
    outs = [rng.standard_normal((1, 1, 3, 2)) for _ in large]
    for a, b in ((0, 1), (1, 0), (2, 0)):
        share = 1 / (1 + math.exp(float(large[b].flat[0] - large[a].flat[0]))) if abs(a - b) == 1 else 0.0
        want = outs[a] * share + outs[b] * (1 - share), np.logaddexp(large[a], large[b])
        numbers = [torch.from_numpy(x) for x in (outs[a], large[a], outs[b], large[b])]
        compare(f"lse {large[a].flat[0]:g} and {large[b].flat[0]:g}", merge(*numbers), want, "float64", "merge", 1e-6)


@check(BLOCKS, points=0.5)
def a_part_without_keys_changes_nothing(attend, merge, *, rng):
    """Merging with a part without a key (0 and −∞) leaves the other as it is, bit for bit, also if that has none."""
    nothing = torch.zeros(1, 2, 3, 4), torch.full((1, 2, 3), -math.inf)
    q, k, v = torch.from_numpy(rng.standard_normal((3, 1, 2, 3, 4))).float()
    part = _pair("attend", attend(q, k, v, torch.arange(3), torch.arange(3)), "attend")
    for name, pair, want in (
        ("a part without keys on the right", (part, nothing), part),
        ("a part without keys on the left", (nothing, part), part),
        ("two parts without keys", (nothing, nothing), nothing),
    ):
        given = [x.clone() for x in (*pair[0], *pair[1])]  # merge could change what it is compared with
        got = _pair(name, merge(*given), "merge")
        same = all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
        if not same:
            bad = any(bool(x.isnan().any()) for x in got)
            text = "merge gives nan" if bad else "merge changes the part"
            fail(f"{text}, but it should stay as it is", name, [_finite(x) for x in got])
