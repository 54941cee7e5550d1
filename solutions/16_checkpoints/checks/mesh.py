"""Exercise 4: what was saved on one mesh, loaded on another.

The oracle of a rank's box cuts an array with numpy, axis after axis; that of `load_resharded` is a piece of the whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autograder.checks.cases import Call, fact, sentence
from autograder.checks.check import check

from .format import Saved, scratch, spoil, write_checkpoint
from .states import fair, plain, refused, told

MESH = "16-ex4-reshard"


def _places(mesh: dict[str, int], rank: int) -> dict[str, int]:
    return dict(zip(mesh, (int(place) for place in np.unravel_index(rank, tuple(mesh.values()))), strict=True))


def _piece(whole: np.ndarray, cut: dict[str, int], mesh: dict[str, int], rank: int) -> np.ndarray:
    """What a rank holds of an array."""
    for axis, place in _places(mesh, rank).items():
        if axis in cut:
            length = math.ceil(whole.shape[cut[axis]] / mesh[axis])
            whole = np.take(whole, range(place * length, min((place + 1) * length, whole.shape[cut[axis]])), cut[axis])
    return whole


def _box(shape: list[int], cut: dict[str, int], mesh: dict[str, int], rank: int) -> list[list[int]]:
    """The same as begins and ends; the piece must not be empty."""
    piece = _piece(np.arange(math.prod(shape)).reshape(shape), cut, mesh, rank).reshape(-1)
    first, last = (np.unravel_index(piece[end], shape) for end in (0, -1))
    return [[int(a), int(b) + 1] for a, b in zip(first, last, strict=True)]


def _lists(found: Any, *_: Any) -> Any:
    return [list(pair) for pair in found] if isinstance(found, list) else found


def _boxes(box: Any, *tried: tuple[list[int], dict, dict]) -> Iterator[Call]:
    """Every rank's box of these (shape, cut, mesh)."""
    for shape, cut, mesh in tried:
        for rank in range(math.prod(mesh.values())):
            yield Call(box, shape, cut, mesh, rank, gives=_box(shape, cut, mesh, rank), sees=_lists)


@check(MESH, points=0.25)
def boxes_follow_the_mesh(box: Any, *, rng: np.random.Generator) -> Iterator[Call]:
    """Every rank's box, with rows and columns cut by one axis each, evenly or not."""
    n, m = (int(k) for k in rng.integers(7, 12, 2))
    yield from _boxes(
        box,
        ([n], {"dp": 0}, {"dp": 3}),
        ([n, m], {"dp": 0, "tp": 1}, {"dp": 2, "tp": 3}),
        ([n, m], {"tp": 0}, {"dp": 2, "tp": 2}),
        ([4, n, 3], {"tp": 1, "pp": 0}, {"pp": 2, "dp": 2, "tp": 2}),
    )


@check(MESH, points=0.5)
def two_axes_cut_one_dimension(box: Any, *, rng: np.random.Generator) -> Iterator[Call]:
    """Where several axes cut one dimension, each cuts what the axes before it in the mesh have left."""
    n, m = (int(k) for k in rng.integers(2, 6, 2))
    yield from _boxes(
        box,
        ([6 * n, m], {"dp": 0, "tp": 0}, {"dp": 2, "tp": 3}),
        ([6 * n, m], {"tp": 0, "dp": 0}, {"dp": 2, "tp": 3}),
        ([m, 12 * n], {"tp": 1, "pp": 1}, {"pp": 3, "dp": 2, "tp": 2}),
    )


@check(MESH, points=0.25)
def last_boxes_may_be_empty(box: Any, *, rng: np.random.Generator) -> Iterator[Call]:
    """Where there are fewer rows than would fill all pieces, the last boxes end where they begin, inside the tensor."""
    rows = int(rng.integers(3, 6))
    ranks = rows + int(rng.integers(2, 5))
    for rank in range(rows, ranks):
        what, name = "rows in the box, and whether it lies in the tensor,", f"{rows} rows on rank {rank} of {ranks}"
        sees = lambda found, *_: [found[0][1] - found[0][0], 0 <= found[0][0] <= found[0][1] <= rows]  # noqa: E731
        yield Call(box, [rows, 2], {"dp": 0}, {"dp": ranks}, rank, gives=[0, True], sees=sees, what=what, name=name)


@check(MESH, points=0.5)
def boxes_share_what_both_contain(overlap: Any, *, rng: np.random.Generator) -> Iterator[Call]:
    """The common box of two boxes in one, two and three dimensions; None if they only touch, or miss each other."""
    for dimensions in (1, 2, 3, 2):
        ends = np.sort(rng.permuted(np.tile(np.arange(12), (dimensions, 1)), axis=1)[:, :4], axis=1).tolist()
        one, other = [(a, c) for a, _, c, _ in ends], [(b, d) for _, b, _, d in ends]
        for first, second in ((one, other), (other, one)):
            yield Call(overlap, first, second, gives=[[b, c] for _, b, c, _ in ends], sees=_lists)
        yield Call(overlap, [(0, 12)] * dimensions, one, gives=[list(pair) for pair in one], sees=_lists)
        apart = [*one[:-1], (one[-1][1], 20)]  # touches in the last dimension alone
        yield Call(overlap, one, apart, gives=None)


# ---- load_resharded ----

NAMES = ("layers.0.w", "layers.1.w", "norm")


def _wholes(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Tensors whose elements all differ."""
    n, m = (int(k) for k in rng.integers(6, 10, 2))
    shapes = dict(zip(NAMES, ((n, m), (m, n), (n,)), strict=True))
    return {name: rng.permutation(math.prod(s)).astype(np.float32).reshape(s) for name, s in shapes.items()}


def _layout(wholes: dict[str, np.ndarray], mesh: dict[str, int], cuts: list[dict], on: list[dict]) -> dict:
    named = zip(wholes.items(), cuts, on, strict=True)
    return {"mesh": mesh, "tensors": {k: {"shape": list(w.shape), "cut": c, "on": o} for (k, w), c, o in named}}


def _held(wholes: dict[str, np.ndarray], layout: dict, rank: int) -> dict[str, np.ndarray]:
    """What a rank holds in a layout."""
    mesh, tensors = layout["mesh"], layout["tensors"]
    here = {name for name in tensors if _places(mesh, rank).items() >= tensors[name]["on"].items()}
    return {name: _piece(whole, tensors[name]["cut"], mesh, rank) for name, whole in wholes.items() if name in here}


def _saved(wholes: dict[str, np.ndarray], layout: dict) -> Saved:
    pieces = [_held(wholes, layout, rank) for rank in range(math.prod(layout["mesh"].values()))]
    flat = [{name: (KINDS[piece.dtype.name], piece.tobytes()) for name, piece in held.items()} for held in pieces]
    return Saved(10, flat, {"layout": layout})


#: A dtype of numpy, and the one of the tensor with these bytes.
KINDS = {"float32": "float32", "int64": "int64", "float64": "float64", "uint16": "bfloat16"}
OFF: list[dict] = [{}, {}, {}]
ROWS_AND_COLUMNS: list[dict] = [{"dp": 0, "tp": 1}, {"tp": 0}, {}]
STAGES: list[dict] = [{"pp": 0}, {"pp": 1}, {"pp": 1}]


@dataclass
class Loaded:
    """What a rank loads: name → [shape, [dtype, bytes in hex]]."""

    raised: str = sentence()
    tensors: Any = fact("{} of what load_resharded returns")


def _begins_and_ends(shape: list[int], cut: dict[str, int], mesh: dict[str, int], rank: int) -> list[tuple[int, int]]:
    """A right `box`."""
    bounds = [(0, n) for n in shape]
    for axis, place in _places(mesh, rank).items():
        if axis in cut:
            begin, end = bounds[cut[axis]]
            length = math.ceil((end - begin) / mesh[axis])
            bounds[cut[axis]] = (min(begin + place * length, end), min(begin + (place + 1) * length, end))
    return bounds


def _common(wanted: list, saved: list) -> list[tuple[int, int]] | None:
    """A right `overlap`."""
    both = [(max(one[0], other[0]), min(one[1], other[1])) for one, other in zip(wanted, saved, strict=True)]
    return None if any(begin >= end for begin, end in both) else both


def _refused(mentions: tuple[str, ...], load_resharded: Any, *args: Any) -> str:
    with fair(load_resharded, box=_begins_and_ends, overlap=_common):
        return refused(mentions, load_resharded, *args)


def _loaded(load_resharded: Any, path: Path, layout: dict, rank: int) -> Loaded:
    with fair(load_resharded, box=_begins_and_ends, overlap=_common):
        found, said = told(load_resharded, path, layout, rank)
    if said:
        return Loaded(f"load_resharded raised {said}", {})
    return Loaded("", {name: [list(t.shape), plain({name: t.flatten()})[name]] for name, t in found.items()})


def _described(part: np.ndarray) -> list:
    return [list(part.shape), [KINDS[part.dtype.name], part.tobytes().hex()]]


def _loads(name: str, load_resharded: Any, path: Path, wholes: dict, layout: dict) -> Iterator[Call]:
    """Each rank's load gives what it holds in the layout."""
    for rank in range(math.prod(layout["mesh"].values())):
        held = _held(wholes, layout, rank)
        gives = Loaded("", {k: _described(part) for k, part in held.items()})
        yield Call(_loaded, load_resharded, path, layout, rank, gives=gives, name=f"{name}, rank {rank}")


@check(MESH, points=0.75)
def any_mesh_loads_what_another_saved(load_resharded: Any, *, rng: np.random.Generator) -> Iterator[Call]:
    """Every rank of a new mesh gets its rows and columns of each of its tensors, whatever the old mesh was."""
    wholes = _wholes(rng)
    rows = _layout(wholes, {"dp": 3}, [{"dp": 0}] * 3, OFF)
    grid = _layout(wholes, {"dp": 2, "tp": 2}, ROWS_AND_COLUMNS, OFF)
    columns = _layout(wholes, {"tp": 4}, [{"tp": 1}, {"tp": 1}, {"tp": 0}], OFF)
    for name, old, new in (("rows to grid", rows, grid), ("grid to columns", grid, columns), ("to rows", grid, rows)):
        path = write_checkpoint(scratch(), _saved(wholes, old))
        yield from _loads(name, load_resharded, path, wholes, new)


@check(MESH, points=0.75)
def pieces_keep_their_dtypes(load_resharded: Any, *, rng: np.random.Generator) -> Iterator[Call]:
    """Tensors of other dtypes than float32 come back in theirs, with the same bytes."""
    made = zip(_wholes(rng).items(), ("int64", "float64", "uint16"), (2**40, 1e-9, 0), strict=True)
    wholes = {name: whole.astype(dtype) + np.dtype(dtype).type(more) for (name, whole), dtype, more in made}
    rows = _layout(wholes, {"dp": 3}, [{"dp": 0}] * 3, OFF)
    grid = _layout(wholes, {"dp": 2, "tp": 2}, ROWS_AND_COLUMNS, OFF)
    path = write_checkpoint(scratch(), _saved(wholes, rows))
    yield from _loads("int64, float64 and bfloat16", load_resharded, path, wholes, grid)


@check(MESH, points=0.25)
def stages_keep_their_tensors(load_resharded: Any, *, rng: np.random.Generator) -> Iterator[Call]:
    """With `on`, ranks load and save only the tensors of their stage."""
    wholes = _wholes(rng)
    whole = _layout(wholes, {"dp": 1}, OFF, OFF)
    stages = _layout(wholes, {"pp": 2, "dp": 2, "tp": 2}, ROWS_AND_COLUMNS, STAGES)
    for name, old, new in (("stages to one rank", stages, whole), ("one rank to stages", whole, stages)):
        path = write_checkpoint(scratch(), _saved(wholes, old))
        yield from _loads(name, load_resharded, path, wholes, new)


@check(MESH, points=0.5)
def only_needed_shards_are_read(load_resharded: Any, *, rng: np.random.Generator) -> Iterator[Call]:
    """A damaged shard stops the ranks that need it, by a CheckpointError that names it, and no others."""
    wholes = _wholes(rng)
    rows = _layout(wholes, {"dp": 3}, [{"dp": 0}] * 3, OFF)
    path, shard = write_checkpoint(scratch(), _saved(wholes, rows)), "shard_00002.bin"
    spoil(path / shard, "last")
    halves = _layout(wholes, {"dp": 2}, [{"dp": 0}] * 3, OFF)
    yield next(_loads(f"{shard} is damaged", load_resharded, path, wholes, halves))
    about = {"name": f"{shard} is damaged, rank 1", "what": "what is wrong with the error"}
    yield Call(_refused, (shard,), load_resharded, path, halves, 1, gives="", **about)


@check(MESH, points=0.25)
def what_nobody_saved_is_named(load_resharded: Any, *, rng: np.random.Generator) -> Iterator[Call]:
    """Where nobody saved a part that a rank needs, it raises a CheckpointError that names the tensor."""
    wholes = _wholes(rng)
    old = _layout(wholes, {"dp": 2}, [{"dp": 0}] * 3, OFF)
    saved, lost = _saved(wholes, old), NAMES[int(rng.integers(3))]
    del saved.pieces[1][lost]
    path = write_checkpoint(scratch(), saved)
    new = _layout(wholes, {"dp": 1}, OFF, OFF)
    about = {"name": f"rank 1 saved no part of {lost}", "what": "what is wrong with the error"}
    yield Call(_refused, (lost,), load_resharded, path, new, 0, gives="", **about)
