"""Exercise 1: one shard's file, written durably and read back."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autograder.checks.cases import Call, Case, fact, sentence
from autograder.checks.check import check
from autograder.checks.instruments.filesystem import read_log

from .durability import expect_synced, logged, what_it_says
from .format import Saved, draw, manifest_of, scratch, spoil, write_checkpoint
from .states import plain, plain_of, refused, state_of, told

SHARD = "16-ex1-shard"


@dataclass
class Shard:
    """A shard that was written, and read again."""

    entry: Any = fact("write_shard's entry")
    files: Any = fact("the bytes of the file {}")
    raised: str = sentence()
    read: Any = fact("{} of what read_shard returns")


def _shard(rank: int, world_size: int, folder: Path, functions: tuple, saved: Saved, number: int) -> Shard:
    write_shard, read_shard = functions
    state = state_of(Saved(0, saved.pieces, {}), 0)
    entry = write_shard(folder, number, state)
    files = {file.name: file.read_bytes() for file in sorted(folder.iterdir())}
    found, said = told(read_shard, folder, entry)
    raised = f"read_shard of an intact file raised {said}" if said else ""
    return Shard(entry, files, raised, {} if said else plain(found))


def _there_and_back(name: str, functions: tuple, saved: Saved, rank: int) -> Case:
    """The shard of this rank, which holds the only piece of `saved`, is written and read."""
    manifest, files = manifest_of(saved)
    entry = manifest["shards"][0] | {"rank": rank, "file": f"shard_{rank:05d}.bin"}
    expect = [Shard(entry, {entry["file"]: files[0]}, "", plain_of(saved, 0, values=False))]
    return Case(f"{name}, shard {rank}", 1, _shard, (scratch(), functions, saved, rank), expect)


@check(SHARD, points=0.5)
def shard_files_hold_the_bytes(write_shard: Any, read_shard: Any, *, rng: np.random.Generator) -> Iterator[Case]:
    """A shard's file holds the bytes of all tensors, as its entry describes them, and `read_shard` gives them back."""
    for rank in (3, int(rng.integers(100, 1000))):
        yield _there_and_back("five dtypes", (write_shard, read_shard), draw(rng, 1, 0), rank)


@check(SHARD, points=0.5)
def pieces_may_be_empty(write_shard: Any, read_shard: Any, *, rng: np.random.Generator) -> Iterator[Case]:
    """Shards with an empty tensor among others are written and read like all others."""
    pieces = draw(rng, 3, 0).pieces[2]
    for names in (sorted(pieces), ["count", "master"]):
        saved = Saved(0, [{name: pieces[name] for name in names}], {})
        name = f"{len(names)} tensors, of which master is empty"
        yield _there_and_back(name, (write_shard, read_shard), saved, int(rng.integers(100, 1000)))


@check(SHARD, points=0.25)
def damaged_shards_are_refused(read_shard: Any, *, rng: np.random.Generator) -> Iterator[Call]:
    """A file that differs from its entry is a CheckpointError that names it."""
    yield from _refused(read_shard, draw(rng, 2, 5), "first", "last", "cut", "longer")


@check(SHARD, points=0.25)
def missing_shards_are_refused(read_shard: Any, *, rng: np.random.Generator) -> Iterator[Call]:
    """A file that is missing is a CheckpointError that names it."""
    yield from _refused(read_shard, draw(rng, 2, 5), "missing")


def _refused(read_shard: Any, saved: Saved, *hows: str) -> Iterator[Call]:
    folder, entry = scratch(), manifest_of(saved)[0]["shards"][1]
    for how in hows:
        path = write_checkpoint(folder / how, saved)
        spoil(path / entry["file"], how)
        what = {"first": "a bit of the first byte", "last": "a bit of the last byte"}.get(how, f"the file is {how}")
        about = {"name": what, "what": "what is wrong with the error"}
        yield Call(refused, (entry["file"],), read_shard, path, entry, gives="", **about)


@dataclass
class Durable:
    """A file that `write_durably` wrote over a longer one."""

    data: Any = fact("what is in the file after write_durably")
    digest: Any = fact("what write_durably returns")
    synced: str = sentence()


def _durably(rank: int, world_size: int, folder: Path, write_durably: Any, data: bytes) -> Durable:
    log, target = logged(folder, 0, write_durably), folder / "files" / "plain.bin"
    target.write_bytes(bytes(100))
    log.add("begin", "durably")
    digest = write_durably(target, data)
    log.returned("durably")
    return Durable(target.read_bytes(), digest)


@check(SHARD, points=0.5)
def files_are_durable(write_durably: Any, *, rng: np.random.Generator) -> Iterator[Case]:
    """write_durably replaces what is in a file, returns its SHA-256, and fsyncs all of it before it returns."""
    folder, data = scratch(), rng.bytes(12)
    (folder / "files").mkdir()
    target = folder / "files" / "plain.bin"

    def sees(found: list[Durable]) -> list[Durable]:
        events = read_log(folder / "log")
        found[0].synced = what_it_says(expect_synced, "", events, "durably", target, "write_durably")
        return found

    expect = [Durable(data, hashlib.sha256(data).hexdigest(), "")]
    yield Case("12 bytes over a file of 100", 1, _durably, (folder, write_durably, data), expect, sees=sees)
