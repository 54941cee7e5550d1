"""A checkpoint as plain data, a writer and a reader of its format: json, hashlib and bytes, no tensors."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from os import W_OK, access
from pathlib import Path
from typing import Any

import numpy as np

from autograder.checking.expect import apart, ceil_div, fail, same
from autograder.checking.stage import jailed

#: Bytes of a number, by the name of its dtype.
SIZES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1}
SIZES |= {"uint8": 1, "bool": 1}
#: What a rank may write besides its own pieces: the manifest, and room for another implementation's bookkeeping.
BOOKKEEPING = 64 * 1024
#: When all checkpoints of `write_checkpoint` say that they were made.
CREATED = "2026-01-31T12:00:00+00:00"
#: Where fsync costs nothing, if there is such a place.
FAST = "/dev/shm" if access("/dev/shm", W_OK) else None


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder that both a submission and its check can see; removed at the end."""
    with tempfile.TemporaryDirectory(prefix="checkpoints-", dir=None if jailed() else FAST) as folder:
        yield Path(folder).resolve()


# ---- a checkpoint ----


@dataclass
class Saved:
    """A checkpoint: `pieces[rank]` maps names to (dtype's name, bytes)."""

    step: int
    pieces: list[dict[str, tuple[str, bytes]]]
    values: dict

    @property
    def name(self) -> str:
        """Its folder's name."""
        return "step_" + str(self.step).rjust(8, "0")


def _bytes(rng: np.random.Generator, dtype: str, numel: int) -> bytes:
    """Numbers with any bits, NaN and -0.0 among them."""
    if dtype == "bool":
        return rng.integers(0, 2, numel, dtype=np.uint8).tobytes()
    return rng.bytes(numel * SIZES[dtype])


def draw(rng: np.random.Generator, world_size: int, step: int, numel: int = 0, tensors: bool = True) -> Saved:
    """Tensors of several dtypes, in pieces of any length, some empty; or one float32 tensor of `numel` a rank."""
    kinds = {
        "master": "float32",
        "exp_avg": "bfloat16",
        "count": "int64",
        "mask": "bool",
        "x": "float16",
        "y": "float64",
    }
    lengths = {name: rng.integers(1, 9, world_size) for name in kinds}
    if world_size > 1:
        lengths["count"][rng.integers(world_size)] = 0
        lengths["master"][-1] = 0
    pieces = [
        {name: (kind, _bytes(rng, kind, int(lengths[name][r]))) for name, kind in kinds.items()}
        for r in range(world_size)
    ]
    if numel:
        pieces = [{"w": ("float32", _bytes(rng, "float32", numel + r))} for r in range(world_size)]
    values = {
        "step": step,
        "lr": float(rng.random() / 3),
        "name": "Adam, β₂ = 0.999",
        "betas": [0.9, float(rng.random())],
        "nested": {
            "tokens": int(rng.integers(2**53, 2**62)),
            "list": [1, 2.0, None, True, {"deep": [1e-300]}],
            "empty": {},
        },
    }
    return Saved(step, pieces if tensors else [{} for _ in pieces], values)


def recut(saved: Saved, world_size: int) -> Saved:
    """The same numbers in pieces of ⌈P/N⌉."""
    pieces: list[dict] = [{} for _ in range(world_size)]
    for name, (dtype, _) in saved.pieces[0].items():
        whole = b"".join(piece[name][1] for piece in saved.pieces)
        length = ceil_div(len(whole) // SIZES[dtype], world_size) * SIZES[dtype]
        for rank in range(world_size):
            pieces[rank][name] = (dtype, whole[rank * length : (rank + 1) * length])
    return replace(saved, pieces=pieces)


# ---- its writer ----


def manifest_of(saved: Saved) -> tuple[dict, list[bytes]]:
    """The manifest of a checkpoint, and its files' contents."""
    shards, files = [], []
    for rank, tensors in enumerate(saved.pieces):
        data, table = b"", {}
        for name, (dtype, piece) in tensors.items():
            table[name] = {"dtype": dtype, "offset": len(data), "numel": len(piece) // SIZES[dtype]}
            data += piece
        digest = hashlib.sha256(data).hexdigest()
        file = f"shard_{rank:05d}.bin"
        shards.append({"rank": rank, "file": file, "bytes": len(data), "sha256": digest, "tensors": table})
        files.append(data)
    manifest = {"schema": 1, "step": saved.step, "world_size": len(files), "created": CREATED, "values": saved.values}
    return {**manifest, "shards": shards}, files


def write_checkpoint(root: Path, saved: Saved) -> Path:
    """Write a checkpoint into `root` as it should be; its folder."""
    path = root / saved.name
    path.mkdir(parents=True)
    manifest, files = manifest_of(saved)
    for entry, data in zip(manifest["shards"], files, strict=True):
        (path / entry["file"]).write_bytes(data)
    put_manifest(path, manifest)
    return path


def put_manifest(path: Path, manifest: Any) -> None:
    """Write manifest.json and manifest.sha256 into a checkpoint's folder."""
    data = json.dumps(manifest, indent=2).encode()
    (path / "manifest.json").write_bytes(data)
    (path / "manifest.sha256").write_text(hashlib.sha256(data).hexdigest())


# ---- its reader ----


def read_checkpoint(path: Path) -> Saved | str:
    """What a checkpoint holds; or, in a sentence, why it is none."""
    files = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}
    for name in ("manifest.json", "manifest.sha256"):
        if name not in files:
            return f"{name} is missing"
    data, digest = files.pop("manifest.json"), files.pop("manifest.sha256")
    if hashlib.sha256(data).hexdigest().encode() != digest.strip():
        return "manifest.sha256 does not hold the SHA-256 of manifest.json"
    try:
        return _from_manifest(json.loads(data), files)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return f"manifest.json is not as described: {type(error).__name__} {error}"


def _from_manifest(manifest: dict, files: dict[str, bytes]) -> Saved | str:
    if manifest["schema"] != 1:
        return f"the manifest's schema is {manifest['schema']!r}, expected 1"
    if datetime.datetime.fromisoformat(manifest["created"]).tzinfo is None:
        return f"created is {manifest['created']!r}, without a time zone"
    if [entry["rank"] for entry in manifest["shards"]] != list(range(manifest["world_size"])):
        return f"the manifest does not list one shard for each of the ranks 0 to {manifest['world_size'] - 1}, in order"
    listed = [entry["file"] for entry in manifest["shards"]]
    if set(files) != set(listed):
        return f"the folder holds the files {sorted(files)}, the manifest lists {listed}"
    pieces = []
    for rank, entry in enumerate(manifest["shards"]):
        if entry["file"] != f"shard_{rank:05d}.bin":
            return f"rank {rank}'s file is called {entry['file']}"
        tensors = tensors_in(entry, files[entry["file"]])
        if isinstance(tensors, str):
            return tensors
        pieces.append(tensors)
    return Saved(manifest["step"], pieces, manifest["values"])


def tensors_in(entry: dict, data: bytes) -> dict[str, tuple[str, bytes]] | str:
    """The pieces in a shard's file; or, in a sentence, what is wrong with it."""
    if set(entry) != {"rank", "file", "bytes", "sha256", "tensors"}:
        return f"the entry of {entry.get('file')} has the keys {sorted(entry)}"
    if entry["bytes"] != len(data):
        return f"{entry['file']} has {len(data)} bytes, its entry says {entry['bytes']}"
    if entry["sha256"] != hashlib.sha256(data).hexdigest():
        return f"{entry['file']} has a SHA-256 other than its entry says"
    tensors, end = {}, 0
    for name, place in entry["tensors"].items():
        if set(place) != {"dtype", "offset", "numel"} or place["dtype"] not in SIZES:
            return f"the entry of {entry['file']} describes {name!r} by {place}"
        if place["offset"] != end:
            return f"in {entry['file']}, {name!r} begins at byte {place['offset']}, the tensor before it ends at {end}"
        end += place["numel"] * SIZES[place["dtype"]]
        tensors[name] = (place["dtype"], data[place["offset"] : end])
    return tensors if end == len(data) else f"{entry['file']} has {len(data)} bytes, its tensors have {end}"


# ---- expectations ----


def expect_content(case: str, path: Path, want: Saved, what: str = "the checkpoint") -> None:
    """A checkpoint on the disk is the one that it should be."""
    if not path.is_dir():
        there = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else []
        there = [re.sub(r"\d{3,}|[a-z0-9_]{8}$", "…", name) for name in there]  # names that differ from run to run
        fail(f"there is no folder {path.name} where {what} should be", case, ["no folder", there])
    got = read_checkpoint(path)
    if isinstance(got, str):
        fail(f"{what} is wrong: {got}", case, got)
    if got.step != want.step:
        fail(f"{what} says that its step is {got.step}, expected {want.step}", case, ["step", got.step])
    expect_pieces(case, got.pieces, want.pieces, what)
    if not same(got.values, want.values):
        text = f"the dict of plain values in {what} {apart(got.values, want.values)}"
        fail(text, case, ["values", repr(got.values)])


def expect_pieces(case: str, got: list[dict], want: list[dict], what: str) -> None:
    """The pieces of all ranks are what they should be: names in order, dtypes, lengths, bytes."""
    lengths = [{name: (dtype, len(data)) for name, (dtype, data) in mine.items()} for mine in got]
    if len(got) != len(want):
        fail(f"{what} has {len(got)} shards, expected {len(want)}", case, lengths)
    for rank, (mine, expected) in enumerate(zip(got, want, strict=True)):
        if list(mine) != list(expected):
            fail(f"{what} has the tensors {list(mine)} of rank {rank}, expected {list(expected)}", case, list(mine))
        for name, (dtype, data) in expected.items():
            kind, held = mine[name]
            if kind != dtype or len(held) != len(data):
                text = f"{len(held)} bytes of {kind}, expected {len(data)} bytes of {dtype}"
                fail(f"{what} has for {name!r} of rank {rank} {text}", case, lengths)
            if held != data:
                text = f"{what} has other bytes for {name!r} of rank {rank} than were saved"
                fail(text, case, [name, rank, held.hex()])


def fingerprint(path: Path) -> dict[str, str]:
    """Every file below a folder, with its digest."""
    files = [file for file in path.rglob("*") if file.is_file()]
    return {str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


# ---- damage ----


def damage(file: Path, how: str) -> None:
    """Spoil a file in the way that `how` says."""
    data = bytearray(file.read_bytes())
    if how == "the file is missing":
        file.unlink()
        return
    if how == "one bit of the first byte":
        data[0] ^= 1
    elif how == "one bit of the last byte":
        data[-1] ^= 128
    elif how == "the last byte is missing":
        del data[-1]
    elif how == "empty":
        data.clear()
    elif how == "one byte more":
        data.append(0)
    elif how == "as many bytes of another shard":
        data = data[1:] + data[:1] if data[1:] != data[:-1] else bytearray(b ^ 255 for b in data)
    else:
        raise ValueError(f"unknown damage: {how}")
    file.write_bytes(data)


def tampered(folder: Path, rng: np.random.Generator, world_size: int) -> list[tuple[str, Path, tuple[str, ...]]]:
    """Checkpoints of step 10 with which something is wrong: (what, where, what the error must contain)."""
    saved, found = draw(rng, world_size, 10), []

    def another(what: str, *mentions: str) -> Path:
        path = write_checkpoint(folder / str(len(found)), saved)
        found.append((what, path, mentions))
        return path

    for rank in range(world_size):
        name = f"shard_{rank:05d}.bin"
        (another(f"{name} is missing", name) / name).unlink()
        damage(another(f"{name} has one byte less", name) / name, "the last byte is missing")
        damage(another(f"{name} has one byte more", name) / name, "one byte more")
    (another("a shard too many", "shard_00099.bin") / "shard_00099.bin").write_bytes(b"from elsewhere")
    (another("a file that is not listed", "shard_00000.bin.part") / "shard_00000.bin.part").write_bytes(b"")
    (another("a file of another kind that is not listed", "notes.txt") / "notes.txt").write_bytes(b"from elsewhere")
    (another("a folder that is not listed", "of_yesterday") / "of_yesterday").mkdir()
    (another("a hidden file that is not listed", ".nfs0001") / ".nfs0001").write_bytes(b"")
    (another("no manifest.json", "manifest") / "manifest.json").unlink()
    (another("no manifest.sha256", "manifest") / "manifest.sha256").unlink()
    shutil.rmtree(another("no folder at all", "manifest"))
    file = another("one bit of the manifest", "manifest") / "manifest.json"
    file.write_bytes(file.read_bytes().replace(b'"step": 10', b'"step": 11'))
    file = another("the manifest is cut short", "manifest") / "manifest.json"
    file.write_bytes(file.read_bytes()[:-40])
    (another("the manifest's digest is empty", "manifest") / "manifest.sha256").write_text("")
    path = another("the manifest's digest is of something else", "manifest")
    (path / "manifest.sha256").write_text(hashlib.sha256(b"").hexdigest())
    manifest = manifest_of(saved)[0]
    newer = {"schema": 2, "ranks": 1, "shards": {"0": "zstd"}}
    put_manifest(another("schema 2, which has other keys", "schema"), newer)
    put_manifest(another("schema 2, otherwise the same", "schema"), {**manifest, "schema": 2})
    put_manifest(another("no schema", "schema"), {k: v for k, v in manifest.items() if k != "schema"})
    put_manifest(another("schema 0", "schema"), {**manifest, "schema": 0})
    path = another("schema 2, and another digest than the manifest's", "manifest")
    put_manifest(path, newer)
    (path / "manifest.sha256").write_text(hashlib.sha256(b"").hexdigest())
    if world_size > 1:
        path = another("a shard is not listed", "shards")
        put_manifest(path, {**manifest, "shards": manifest["shards"][:-1]})
        (path / manifest["shards"][-1]["file"]).unlink()
        path = another("a shard is not listed, and its file is there", "shards")
        put_manifest(path, {**manifest, "shards": manifest["shards"][:-1]})
        put_manifest(another("rank 0 is listed last", "shards"), {**manifest, "shards": manifest["shards"][::-1]})
        path = another("a rank is listed twice", "shards")
        put_manifest(path, {**manifest, "shards": [manifest["shards"][0], *manifest["shards"][:-1]]})
        (path / manifest["shards"][-1]["file"]).unlink()
    return found
