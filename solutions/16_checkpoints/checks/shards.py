"""Exercise 1: one shard's file, written durably and read back."""

from __future__ import annotations

import hashlib
import json
import pickle
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from autograder.checking.check import check
from autograder.checking.expect import expect_type, fail
from autograder.checking.instruments.filesystem import read_log
from autograder.checking.instruments.pickles import Bomb
from autograder.checking.stage import run_ranks
from autograder.checks.checkpoints.durability import expect_synced, logged
from autograder.checks.checkpoints.format import (
    Saved,
    damage,
    draw,
    expect_pieces,
    manifest_of,
    scratch_folder,
    tensors_in,
    write_checkpoint,
)
from autograder.checks.checkpoints.states import (
    Attempt,
    attempt,
    expect_error,
    expect_returned,
    pieces_of,
    plain_state,
    state_of,
)


@dataclass
class WrittenShard:
    """What came of a case: the entry as JSON ("" if it cannot be), whether the tensors are as before, a read of it."""

    entry: str
    unchanged: bool
    read: Attempt


def _shard_driver(rank, world_size, folder, functions, cases):
    """Write 12 bytes over a file of 100; then write and read every case. What write_durably returned; the cases."""
    write_durably, write_shard, read_shard = functions
    log = logged(folder, 0, *functions)
    target = folder / "files" / "plain.bin"
    target.write_bytes(bytes(100))
    log.add("begin", "durably")
    digest = write_durably(target, b"twelve bytes")
    log.returned("durably")
    written = []
    for number, saved in enumerate(cases):
        where = folder / "files" / str(number)
        state = {name: v for name, v in state_of(saved, 0).items() if isinstance(v, torch.Tensor)}
        before = pieces_of(state)
        log.add("begin", str(number))
        entry = write_shard(where, 100 * number + 3, state)
        log.returned(str(number))
        unchanged = before == pieces_of(state)
        written.append(WrittenShard(_as_json(entry), unchanged, attempt(read_shard, where, entry, plain=plain_state)))
    return digest, written


def _as_json(entry: object) -> str:
    try:
        return json.dumps(entry)
    except (TypeError, ValueError):
        return ""


@check("16-ex1-shard", points=1.5)
def shard_files_hold_the_bytes(write_durably, write_shard, read_shard, *, rng):
    """All bytes are on the disk, as the entry describes them, when a write returns; `read_shard` gives them back."""
    cases = [draw(rng, 1, 0), replace(draw(rng, 3, 0), step=1), draw(rng, 1, 0, tensors=False)]
    cases[1].pieces[0] = cases[1].pieces[2]
    cases.append(replace(cases[2], pieces=[{"a": ("uint8", b"\x07"), "b": ("uint8", b"\x07")}]))
    names = ["six dtypes", "an empty tensor among others", "no tensors", "two equal tensors of one byte"]
    with scratch_folder() as folder:
        for number in range(len(cases)):
            (folder / "files" / str(number)).mkdir(parents=True)
        functions = (write_durably, write_shard, read_shard)
        digest, written = run_ranks(_shard_driver, 1, (folder, functions, cases))[0]
        events, target = read_log(folder / "log"), folder / "files" / "plain.bin"
        case = "12 bytes over a file of 100"
        if target.read_bytes() != b"twelve bytes":
            fail("write_durably left other bytes in the file than it was given", case, len(target.read_bytes()))
        if digest != hashlib.sha256(b"twelve bytes").hexdigest():
            fail("write_durably did not return the SHA-256 of its bytes as 64 hexadecimal digits", case, str(digest))
        expect_synced(case, events, "durably", target, "write_durably")
        for number, (case, saved, got) in enumerate(zip(names, cases, written, strict=True)):
            file = folder / "files" / str(number) / f"shard_{100 * number + 3:05d}.bin"
            _expect_shard(case, got, saved, file, 100 * number + 3)
            expect_synced(case, events, str(number), file, "write_shard")
            if not got.unchanged:
                fail("write_shard changed the tensors that it was given", case, "changed")
            _expect_read(case, got.read, saved.pieces[0])


def _expect_shard(case: str, got: WrittenShard, saved: Saved, file: Path, rank: int) -> None:
    """The file is there, and it holds what its entry says, which is what was saved."""
    if not file.is_file():
        there = sorted(p.name for p in file.parent.iterdir())
        fail(f"write_shard wrote no {file.name}; the folder holds {there}", case, there)
    if not got.entry:
        fail("write_shard's entry cannot be written as JSON: use plain values", case, "no JSON")
    entry = json.loads(got.entry)
    expect_type(case, entry, dict, what="write_shard's entry")
    if (entry.get("rank"), entry.get("file")) != (rank, file.name):
        fail(f"write_shard returned the entry {entry} for the file {file.name}", case, ["entry", repr(entry)])
    tensors = tensors_in(entry, file.read_bytes())
    if isinstance(tensors, str):
        fail(f"after write_shard, {tensors}", case, tensors)
    expect_pieces(case, [tensors], [saved.pieces[0]], "write_shard's file")


def _expect_read(case: str, outcome: Attempt, want: dict) -> None:
    expect_returned(case, outcome, "read_shard of an intact file", ["raised", outcome.raised])
    if isinstance(outcome.value, str):
        fail(f"read_shard returned {outcome.value}", case, outcome.value)
    expect_pieces(case, [outcome.value[0]], [want], "what read_shard returned")


def _read_driver(rank, world_size, read_shard, cases):
    return [attempt(read_shard, Path(folder), entry, plain=plain_state) for folder, entry in cases]


@check("16-ex1-shard", points=0.5)
def damaged_shards_are_refused(read_shard, *, rng):
    """A file that differs from its entry is a CheckpointError that names it; a file's bytes are never executed."""
    saved = replace(draw(rng, 2, 5), values={})
    with scratch_folder() as folder:
        cases, names = (
            [],
            ["one bit of the first byte", "one bit of the last byte", "the last byte is missing", "empty"],
        )
        names += ["one byte more", "the file is missing", "as many bytes of another shard"]
        names += ["the entry has another length, and the file's digest"]
        for number, name in enumerate(names):
            path = write_checkpoint(folder / str(number), saved)
            entry = manifest_of(saved)[0]["shards"][1]
            if name.startswith("the entry"):
                entry = {**entry, "bytes": entry["bytes"] + 1}
            else:
                damage(path / entry["file"], name)
            cases.append((str(path), entry))
        marker = folder / "marker"
        bomb = {"w": ("uint8", pickle.dumps(Bomb(str(marker))))}
        path = write_checkpoint(folder / "bomb", replace(saved, pieces=[bomb]))
        cases.append((str(path), manifest_of(replace(saved, pieces=[bomb]))[0]["shards"][0]))
        outcomes = run_ranks(_read_driver, 1, (read_shard, cases))[0]
        for name, outcome in zip(names, outcomes, strict=False):
            expect_error(name, outcome, "CheckpointError", "shard_00001.bin")
        if marker.exists():
            fail("read_shard executed what it found in the file", "a pickle", "executed")
        _expect_read("a pickle, as bytes", outcomes[-1], bomb)
