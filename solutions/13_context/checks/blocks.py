"""Exercise 1: attention over a block of keys, and two parts merged."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from autograder.checks.cases import Call, close, fact, sentence
from autograder.checks.check import check

BLOCKS = "13-ex1-blocks"
#: Of the largest entry, in float32, for standard normal q and k.
ERROR = 1e-5


def finite(value: Any) -> Any:
    """Evidence that is the same each time, also where a number is nan."""
    return None if value is None else np.nan_to_num(np.asarray(value), nan=7e9)


@dataclass
class Part:
    """What `attend` or `merge` returns."""

    form: str = sentence()
    out: Any = fact("out", seen=finite)
    empty: Any = fact("the list that says where lse is −∞")
    lse: Any = fact("lse (0 stands for −∞)", seen=finite)


def seen(found: Any, *_: Any) -> Part:
    """The facts of a pair (out, lse)."""
    if not (isinstance(found, tuple | list) and len(found) == 2 and all(isinstance(x, torch.Tensor) for x in found)):
        return Part(f"expected two tensors (out, lse), got {type(found).__name__}", None, None, None)
    out, lse = (x.detach().double().numpy() for x in found)
    return Part("", out, np.isneginf(lse).tolist(), np.where(np.isneginf(lse), 0.0, lse))


def no_overflow(**arrays: Any) -> str:
    """A sentence on the first of these arrays that has entries which are nan or infinite; "" if none has."""
    for name, x in arrays.items():
        numbers = np.asarray(x, np.float64)
        if bad := int((~np.isfinite(numbers)).sum()):
            return f"{bad} of the {numbers.size} numbers of {name} are nan or infinite"
    return ""


def _seen_finite(found: Any, *_: Any) -> Part:
    """These facts, with a sentence where one is nan or infinite."""
    part = seen(found)
    return part if part.form else replace(part, form=no_overflow(out=part.out, lse=found[1].detach()))


def right(pair: tuple[np.ndarray, np.ndarray]) -> Part:
    """These facts are expected."""
    out, lse = pair
    finite = np.where(np.isneginf(lse), 0.0, lse)
    return Part("", close(out, ERROR, ERROR), np.isneginf(lse).tolist(), close(finite, ERROR, ERROR))


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, own: Any, keys: Any) -> tuple[np.ndarray, np.ndarray]:
    """(out, lse), query by query in float64, over the allowed keys alone."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    out, lse = np.zeros(q.shape), np.full(q.shape[:-1], -math.inf)
    for b, h, i in np.ndindex(q.shape[:-1]):
        seen_keys = np.flatnonzero(np.asarray(keys) <= own[i])
        if len(seen_keys):
            scores = k[b, h, seen_keys] @ q[b, h, i] / math.sqrt(q.shape[-1])
            shares = np.exp(scores - scores.max())
            lse[b, h, i] = scores.max() + math.log(shares.sum())
            out[b, h, i] = shares @ v[b, h, seen_keys] / shares.sum()
    return out, lse


def _qkv(rng: np.random.Generator, queries: int, keys: int) -> list[np.ndarray]:
    """q, k and v in float32, (2, 3, …, 4) each."""
    return [rng.standard_normal((2, 3, length, 4)).astype(np.float32) for length in (queries, keys, keys)]


def _tensors(*arrays: Any) -> list[torch.Tensor]:
    return [torch.from_numpy(np.array(x)) for x in arrays]


def _attend(attend: Any, q: Any, k: Any, v: Any, own: Any, keys: Any, name: str) -> Call:
    expected = right(attention(q, k, v, own, keys))
    return Call(attend, *_tensors(q, k, v, own, keys), gives=expected, sees=seen, name=name)


@check(BLOCKS, points=1.25)
def a_block_is_attention_over_its_keys(attend, *, rng):
    """out and lse are those of the keys up to each query's position, in any order."""
    mixed = rng.permutation(np.arange(1, 20))
    cases = {"8 positions in order": (np.arange(8), np.arange(8))}
    cases["positions in any order"] = (mixed[:7], np.append(mixed[7:14], 0))
    cases["keys later than some queries"] = (np.array([9, 3, 1]), np.array([8, 1, 5]))
    for name, (own, keys) in cases.items():
        yield _attend(attend, *_qkv(rng, len(own), len(keys)), own, keys, name)


@check(BLOCKS, points=0.75)
def merged_parts_are_the_whole(merge, *, rng):
    """Two parts of the keys, however they are cut, merge to out and lse over all of them; so does a third."""
    own, keys = np.arange(9, 16), rng.permutation(16)
    # Each part has a key that all queries see.
    for count in (2, 3):
        q, k, v = _qkv(rng, len(own), len(keys))
        parts = [np.flatnonzero(np.isin(keys, np.arange(part, 16, count))) for part in range(count)]
        pieces = [attention(q, k[:, :, p], v[:, :, p], own, keys[p]) for p in parts]
        a, b = pieces[:2]
        if count == 3:  # the first two are merged already
            both = np.concatenate(parts[:2])
            a, b = attention(q, k[:, :, both], v[:, :, both], own, keys[both]), pieces[2]
        given = _tensors(*(x.astype(np.float32) for x in (*a, *b)))
        joined = np.concatenate(parts)
        expected = right(attention(q, k[:, :, joined], v[:, :, joined], own, keys[joined]))
        yield Call(merge, *given, gives=expected, sees=seen, name=f"{count} parts")
    part, nothing = _part_and_nothing(rng)
    for name, pair in (("right", (*part, *nothing)), ("left", (*nothing, *part))):
        yield Call(merge, *_tensors(*pair), gives=right(part), sees=seen, name=f"a part without keys on the {name}")


def _part_and_nothing(rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
    """(out, lse) of keys, and of none, in float32."""
    out, lse = attention(*_qkv(rng, 5, 5), np.arange(5), np.arange(5))
    pairs = (out, lse), (np.zeros(out.shape), np.full(lse.shape, -math.inf))
    return [tuple(x.astype(np.float32) for x in pair) for pair in pairs]


@check(BLOCKS, points=0.5)
def nothing_is_seen_of_nothing(attend, merge, *, rng):
    """Without an allowed key out is 0 and lse −∞, in a block and in two that are merged."""
    for name, own, keys in (
        ("no key allowed for one query", [9, 0], [5, 2, 7]),
        ("no keys", [0, 1], []),
        ("no queries", [], [0, 1]),
    ):
        own, keys = np.array(own, np.int64), np.array(keys, np.int64)
        q, k, v = _qkv(rng, len(own), len(keys))
        q[:, :, :1] = 0  # the row that has keys weighs them all alike, whatever is wrong with scores
        yield _attend(attend, q, k, v, own, keys, name)
    _, nothing = _part_and_nothing(rng)
    given = _tensors(*nothing, *nothing)
    yield Call(merge, *given, gives=right(nothing), sees=seen, name="merge, two parts without keys")


@check(BLOCKS, points=0.5)
def large_scores_stay_finite(attend, merge, *, rng):
    """Scores of 1e8 and −1e8, and an lse of 200 and −200, give no inf and no nan."""
    own, keys = np.arange(10, 15), np.array([0, 1, 2, 3, 4, 99])
    for sign in (1, -1):
        q, k, v = _qkv(rng, 5, 6)
        # Of the keys that are seen, the first has the highest score: it wins whatever else a mask lets through.
        q, k = 1e8 * np.abs(q), -np.sort(-sign * np.abs(k), axis=2)
        k[:, :, 5] = 3 * sign * np.abs(k).max()  # no query sees it, and its score is the highest, or the lowest
        out, lse = attention(q, k, v, own, keys)
        # Which of two keys is the larger is certain; float32 rounds how much.
        expected = Part("", close(out, 1e-4) if sign < 0 else ..., np.isneginf(lse).tolist())
        yield Call(attend, *_tensors(q, k, v, own, keys), gives=expected, sees=_seen_finite, name=f"scores of {sign}e8")
    outs = rng.standard_normal((2, 1, 1, 3, 2)).astype(np.float32)
    for number in (200, -200):
        lse = np.full((1, 1, 3), number, np.float32)
        expected, name = Part("", close(outs.mean(0), 1e-4)), f"merge, lse {number} twice"
        yield Call(merge, *_tensors(outs[0], lse, outs[1], lse), gives=expected, sees=_seen_finite, name=name)
