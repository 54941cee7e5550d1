"""A checkpoint as plain data, and as a folder: json, hashlib and bytes, no tensors and none of the course's code."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from os import W_OK, access
from pathlib import Path
from typing import Any

import numpy as np

from autograder.checks.stage import jailed

#: Bytes of an element, by the name of its dtype.
SIZES = {"float64": 8, "float32": 4, "bfloat16": 2, "int64": 8, "bool": 1}
#: What a rank may write or send besides its own pieces: the manifest, and another implementation's bookkeeping.
BOOKKEEPING = 64 * 1024
#: When all checkpoints of `write_checkpoint` say that they were made.
CREATED = "2026-01-31T12:00:00+00:00"
#: Where fsync costs nothing, if there is such a place.
FAST = "/dev/shm" if access("/dev/shm", W_OK) else None
#: The last few folders of `scratch`; cases are tried when the check that made them is at its end.
_KEPT: collections.deque = collections.deque(maxlen=4)


def scratch() -> Path:
    """An empty folder that both a submission and its check can see; it goes when newer ones have come."""
    _KEPT.append(tempfile.TemporaryDirectory(prefix="checkpoints-", dir=None if jailed() else FAST))
    return Path(_KEPT[-1].name).resolve()


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder that is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="checkpoints-", dir=None if jailed() else FAST) as folder:
        yield Path(folder).resolve()


@dataclass
class Saved:
    """A checkpoint: `pieces[rank]` maps names to (dtype's name, bytes)."""

    step: int
    pieces: list[dict[str, tuple[str, bytes]]]
    values: dict

    @property
    def name(self) -> str:
        """Its folder's name."""
        return f"step_{self.step:08d}"


def draw(rng: np.random.Generator, world_size: int, step: int, numel: int = 0, values: bool = True) -> Saved:
    """Tensors of several dtypes, in pieces of any length, one empty; or one float32 tensor of `numel` per rank."""
    kinds = {"master": "float32", "exp_avg": "bfloat16", "count": "int64", "mask": "bool", "y": "float64"}
    lengths = {name: rng.integers(1, 9, world_size) for name in kinds}
    if world_size > 1:
        lengths["master"][-1] = 0
    if numel:
        kinds, lengths = {"w": "float32"}, {"w": numel + np.arange(world_size)}
    drawn = [{k: rng.bytes(int(lengths[k][r]) * SIZES[dtype]) for k, dtype in kinds.items()} for r in range(world_size)]
    pieces = [{k: (kinds[k], bytes(b & 1 for b in d) if k == "mask" else d) for k, d in one.items()} for one in drawn]
    entries: dict[str, Any] = {
        "step": step,
        "lr": float(rng.random() / 3),
        "name": "Adam, β₂ = 0.999",
        "betas": [0.9, float(rng.random())],
    }
    entries["nested"] = {"tokens": int(rng.integers(2**53, 2**62)), "list": [1, 2.0, None, True, {"deep": [1e-300]}]}
    return Saved(step, pieces, entries if values else {})


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


def contents(path: Path) -> dict[str, Any]:
    """What is in a checkpoint's folder: its files, the manifest as JSON without its date, whether its digest fits."""
    files: dict[str, Any] = {file.name: file.read_bytes() for file in sorted(path.glob("*")) if file.is_file()}
    data, digest = (files.pop(f"manifest.{end}", b"") for end in ("json", "sha256"))
    try:
        manifest = {key: value for key, value in json.loads(data).items() if key != "created"}
    except (ValueError, AttributeError):
        manifest = data
    return {"manifest": manifest, "digest fits": hashlib.sha256(data).hexdigest().encode() == digest.strip(), **files}


def contents_of(saved: Saved) -> dict[str, Any]:
    """What `contents` finds in the folder of this checkpoint."""
    manifest, files = manifest_of(saved)
    named = {entry["file"]: data for entry, data in zip(manifest["shards"], files, strict=True)}
    return {"manifest": {k: v for k, v in manifest.items() if k != "created"}, "digest fits": True, **named}


def spoil(file: Path, how: str) -> None:
    """Damage a file: "missing", "cut", "longer", or a bit of the "first" or the "last" byte."""
    data = bytearray(file.read_bytes())
    file.unlink()
    if how == "cut":
        del data[-1]
    elif how == "longer":
        data.append(0)
    elif how in ("first", "last"):
        data[0 if how == "first" else -1] ^= 128
    if how != "missing":
        file.write_bytes(data)
