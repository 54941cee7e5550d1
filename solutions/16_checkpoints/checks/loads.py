"""Exercise 3: the manifest verified, and a load that succeeds on every rank or on none."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from autograder.checks.cases import Call, Case, at_most, fact, sentence
from autograder.checks.check import check
from autograder.checks.instruments.calls import objects_sent

from .format import (
    BOOKKEEPING,
    Saved,
    draw,
    manifest_of,
    put_manifest,
    scratch,
    spoil,
    write_checkpoint,
)
from .states import fair, plain, plain_of, refused, told

LOAD = "16-ex3-load"
#: What can be wrong with a checkpoint of three ranks: (what the error must contain, what is done to its folder).
Wrong = dict[str, tuple[tuple[str, ...], Callable[[Path], Any]]]


def _listed(change: Callable[[dict], dict]) -> Callable[[Path], None]:
    """Another manifest, with its digest: `change` of the one that is there."""
    return lambda path: put_manifest(path, change(_manifest(path)))


def _manifest(path: Path) -> dict:
    import json

    return json.loads((path / "manifest.json").read_bytes())


def _without_last(path: Path) -> None:
    _listed(lambda m: {**m, "shards": m["shards"][:-1]})(path)
    (path / "shard_00002.bin").unlink()


def _tampered(path: Path) -> None:
    file = path / "manifest.json"
    file.write_bytes(file.read_bytes().replace(b'"step": 10', b'"step": 11'))


OTHER_KEYS = {"schema": 2, "ranks": 1, "shards": {"0": "zstd"}}
BROKEN: Wrong = {
    "no manifest.json": (("manifest",), lambda path: (path / "manifest.json").unlink()),
    "no manifest.sha256": (("manifest",), lambda path: (path / "manifest.sha256").unlink()),
    "no folder": (("manifest",), shutil.rmtree),
    "the manifest is changed": (("manifest",), _tampered),
    "the manifest is cut": (("manifest",), lambda path: spoil(path / "manifest.json", "cut")),
    "schema 2, otherwise the same": (("schema",), _listed(lambda m: {**m, "schema": 2})),
    "schema 0": (("schema",), _listed(lambda m: {**m, "schema": 0})),
    "no schema": (("schema",), _listed(lambda m: {k: v for k, v in m.items() if k != "schema"})),
    "schema 2, which has other keys": (("schema",), _listed(lambda m: OTHER_KEYS)),
    "a shard is not listed, and not there": (("shards",), _without_last),
    "a shard is not listed": (("shards",), _listed(lambda m: {**m, "shards": m["shards"][:-1]})),
    "rank 0 is listed last": (("shards",), _listed(lambda m: {**m, "shards": m["shards"][::-1]})),
    "a shard is missing": (("shard_00001.bin",), lambda path: spoil(path / "shard_00001.bin", "missing")),
    "a shard is cut": (("shard_00002.bin",), lambda path: spoil(path / "shard_00002.bin", "cut")),
    "a shard is longer": (("shard_00000.bin",), lambda path: spoil(path / "shard_00000.bin", "longer")),
    "a shard too many": (("shard_00099.bin",), lambda path: (path / "shard_00099.bin").write_bytes(b"from elsewhere")),
}


def _made(folder: Path, name: str, saved: Saved) -> tuple[Path, tuple[str, ...]]:
    """A checkpoint with which this is wrong, and what the error must contain."""
    mentions, damage = BROKEN[name]
    path = write_checkpoint(folder / name.replace(" ", "_"), saved)
    damage(path)
    return path, mentions


def _verified(read_manifest: Any, saved: Saved, said: str) -> Iterator[Call]:
    """Every way to be wrong of which the error must say something that begins like this."""
    folder = scratch()
    for name in [name for name, (mentions, _) in BROKEN.items() if mentions[0].startswith(said)]:
        path, mentions = _made(folder, name, saved)
        yield Call(refused, mentions, read_manifest, path, gives="", name=name, what="what is wrong with the error")


@check(LOAD, points=0.25)
def manifests_are_verified(read_manifest: Any, *, rng: np.random.Generator) -> Iterator[Call]:
    """`read_manifest` returns an intact manifest, and raises an error that names one that is damaged or missing."""
    saved = draw(rng, 3, 10)
    path = write_checkpoint(scratch() / "good", saved)
    yield Call(read_manifest, str(path), gives=manifest_of(saved)[0], name="an intact checkpoint")
    yield from _verified(read_manifest, saved, "manifest")


@check(LOAD, points=0.25)
def other_schemas_are_refused(read_manifest: Any, *, rng: np.random.Generator) -> Iterator[Call]:
    """`read_manifest` raises an error that names the schema if it is another one, or if there is none."""
    yield from _verified(read_manifest, draw(rng, 3, 10), "schema")


@check(LOAD, points=0.25)
def every_rank_has_its_shard(read_manifest: Any, *, rng: np.random.Generator) -> Iterator[Call]:
    """`read_manifest` raises an error that says `shards` if they are not one for each rank, in order."""
    yield from _verified(read_manifest, draw(rng, 3, 10), "shards")


@check(LOAD, points=0.25)
def files_are_compared_with_the_manifest(read_manifest: Any, *, rng: np.random.Generator) -> Iterator[Call]:
    """`read_manifest` raises an error that names a file that is missing, has another length or is not listed."""
    yield from _verified(read_manifest, draw(rng, 3, 10), "shard_")


@dataclass
class Loaded:
    """One rank's load."""

    raised: str = sentence()
    state: Any = fact("the state's {}")
    manifest: Any = fact("the manifest that load_sharded returns")
    sent: Any = fact("the largest object that is sent, in bytes", "tensors need not be sent", lambda n: n > BOOKKEEPING)


def _load(rank: int, world_size: int, load_sharded: Any, path: str) -> Loaded:
    with objects_sent() as sizes, fair(load_sharded):
        found, said = told(load_sharded, path)
    if said:
        return Loaded(f"load_sharded of an intact checkpoint raised {said}", {}, {}, 0)
    state, manifest = found
    return Loaded("", plain(state), manifest, max(sizes, default=0))


@check(LOAD, points=0.75)
def loads_what_was_saved(load_sharded: Any, *, rng: np.random.Generator) -> Iterator[Case]:
    """Each rank gets its own pieces, byte for byte, and the values, and the manifest."""
    for ranks, saved in ((3, draw(rng, 3, 10)), (1, draw(rng, 1, 10))):
        path, manifest = write_checkpoint(scratch(), saved), manifest_of(saved)[0]
        expect = [Loaded("", plain_of(saved, r), manifest) for r in range(ranks)]
        yield Case(f"step {saved.step}", ranks, _load, (load_sharded, str(path)), expect, parts=0)


@check(LOAD, points=0.5)
def tensors_are_read_and_not_sent(load_sharded: Any, *, rng: np.random.Generator) -> Iterator[Case]:
    """Each rank reads its tensors from its own shard; no tensor is sent."""
    saved = draw(rng, 3, 40, numel=60_000)

    def sees(found: list[Loaded]) -> list[Loaded]:
        return [replace(one, state={name: one.state.get(name) for name in saved.pieces[0]}) for one in found]

    path = write_checkpoint(scratch(), saved)
    expect = [Loaded("", plain_of(saved, r, values=False), sent=at_most(BOOKKEEPING)) for r in range(3)]
    yield Case("60,000 numbers", 3, _load, (load_sharded, str(path)), expect, parts=0, sees=sees)


@dataclass
class Refused:
    """A load that must fail on every rank."""

    wrong: str = sentence()


def _refuse(rank: int, world_size: int, load_sharded: Any, paths: list[Path], mentions: tuple[str, ...]) -> Refused:
    with fair(load_sharded):
        wrong = refused(mentions, load_sharded, paths[rank % len(paths)])
    dist.barrier()  # who got a state goes on
    return Refused(wrong)


def _fails(name: str, load_sharded: Any, paths: list[Path], mentions: tuple[str, ...]) -> Case:
    return Case(name, 3, _refuse, (load_sharded, paths, mentions), [Refused("")] * 3, parts=0)


@check(LOAD, points=0.25)
def refuses_damage_on_every_rank(load_sharded: Any, *, rng: np.random.Generator) -> Iterator[Case]:
    """Whichever rank's shard is damaged, every rank raises a CheckpointError that names it."""
    folder, saved = scratch(), draw(rng, 3, 10)
    for rank, how in enumerate(("first", "last", "first")):
        path, name = write_checkpoint(folder / f"{rank}", saved), f"shard_{rank:05d}.bin"
        spoil(path / name, how)
        yield _fails(f"a bit of {name} is flipped", load_sharded, [path], (name,))


@check(LOAD, points=0.25)
def a_rank_without_a_manifest_stops_all(load_sharded: Any, *, rng: np.random.Generator) -> Iterator[Case]:
    """If one rank cannot read the manifest, every rank raises a CheckpointError that says so."""
    folder = scratch()
    good = write_checkpoint(folder / "good", draw(rng, 3, 10))
    yield _fails("rank 1 does not see the folder", load_sharded, [good, folder / "nowhere", good], ("manifest",))


@check(LOAD, points=0.25)
def another_number_of_ranks_is_refused(load_sharded: Any, *, rng: np.random.Generator) -> Iterator[Case]:
    """With more or fewer ranks than were saved, every rank raises a CheckpointError with both numbers."""
    for other in (2, 4):
        path = write_checkpoint(scratch(), draw(rng, other, 10))
        yield _fails(f"saved by {other}", load_sharded, [path], (str(other), "3"))
