"""Lesson 17, exercise 5: a resumed run compared with one that was never stopped."""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from autograder.checks.check import check
from autograder.checks.expect import each_rank, fail

from .common import LISTS, MOST_NAMED, PIECES, equip, run_ranks, what_it_says


class _WithAZero(PIECES.ZeroOptimizer):
    """The reference optimizer, but for the first of all parameters, which is 0.0 after each step."""

    def gather_parameters(self) -> None:
        if dist.get_rank() == 0:
            self.master.data[0] = 0.0
        super().gather_parameters()


def _drive_train(rank: int, world_size: int, train: Any, root: str) -> dict:
    """Inside a rank: the run that is never stopped."""
    equip(train, ZeroOptimizer=_WithAZero)
    return train(rank, world_size, 7, root, 4)


def _drive_verify(
    rank: int, world_size: int, verify_resume: Any, train: Any, root: str, told: list[list[dict]]
) -> dict:
    """Inside a rank: what verify_resume says of each report of a run. What was changed in which is not known here."""
    equip(train, ZeroOptimizer=_WithAZero)
    equip(verify_resume, ZeroOptimizer=_WithAZero)
    outcomes = []
    for reports in told:
        dist.barrier()
        verdicts: list[Any] = []
        said = what_it_says(lambda t=reports, v=verdicts: v.append(verify_resume(rank, world_size, t, 7)))
        verdict = verdicts[0] if verdicts and isinstance(verdicts[0], dict) else {}
        outcomes.append((said, {name: verdict.get(name, "missing") for name in ("ok", "first_difference")}))
    return {"outcomes": outcomes, "there": sorted(path.name for path in Path(root).iterdir())}


def _changed(everyone: list[dict], changes: list[tuple], root: str) -> list[dict]:
    """What all ranks report, with changes: (rank or None for all, what to change)."""
    told = copy.deepcopy(everyone)
    for culprit, change in changes:
        _change(told, culprit, change, root)
    return told


def _change(told: list[dict], culprit: int | None, change: Any, root: str) -> None:
    """Change what is reported of rank `culprit`'s run, or of every rank's (None)."""
    if change in ("other checkpoint", "short checkpoint"):
        path, digests = _with_other_masters(
            _checkpoint(told), Path(root, change.split()[0]), change == "short checkpoint"
        )
        for run, digest in zip(told, digests, strict=True):
            run["checkpoints"] = [{"step": 4, "path": str(path), "sha256": digest}]
        return
    if change == "flipped byte":
        path = Path(shutil.copytree(_checkpoint(told), Path(root, "flipped", "step_00000004")))
        file = path / "shard_00001.bin"
        data = bytearray(file.read_bytes())
        data[99] ^= 4
        file.write_bytes(data)
        for run in told:
            run["checkpoints"][0]["path"] = str(path)
        return
    for run in told if culprit is None else [told[culprit]]:
        name, place, value = change
        if name == "checkpoints":
            run[name] = value
        elif name == "sha256":
            run["checkpoints"][0]["sha256"] = value
        elif name == "parameters":
            run[name].view(np.int32)[place] ^= value
        elif name == "steps":
            del run["steps"][place]
        else:
            run[name][place] = value(run[name][place])


def _checkpoint(told: list[dict]) -> Path:
    """Where the checkpoint of step 4 is that these runs made."""
    entries = told[0]["checkpoints"]
    path = Path(entries[0]["path"]) if entries else Path()
    if not (path / "manifest.json").is_file():
        fail("train did not save a checkpoint of step 4", "an honest run", "checkpoint")
    return path


def _with_other_masters(path: Path, root: Path, short: bool) -> tuple[Path, list[str]]:
    """A whole checkpoint of other parameters, and for each rank the digest of its tensors, in the order of names.

    short: each rank's tensors lack their last number, so that they do not fit the model.
    """
    target = Path(shutil.copytree(path, root / "step_00000004"))
    manifest, digests = json.loads((target / "manifest.json").read_bytes()), []
    for shard in manifest["shards"]:
        data, tensors = bytearray((target / shard["file"]).read_bytes()), shard["tensors"]
        for place in tensors.values():
            place["numel"] -= short
        parts = {name: slice(p["offset"], p["offset"] + 4 * p["numel"]) for name, p in tensors.items()}
        masters = np.frombuffer(bytes(data[parts["master"]]), np.float32)
        data[parts["master"]] = (masters + np.float32(1e-3)).tobytes()
        (target / shard["file"]).write_bytes(data)
        shard["sha256"] = hashlib.sha256(data).hexdigest()
        digests.append(hashlib.sha256(b"".join(data[parts[name]] for name in sorted(parts))).hexdigest())
    text = json.dumps(manifest).encode()
    (target / "manifest.json").write_bytes(text)
    (target / "manifest.sha256").write_text(hashlib.sha256(text).hexdigest())
    return target, digests


def _nudge(value: float) -> float:
    return float(np.nextafter(value, 9.0))


def _replace(text: str) -> str:
    return ("0" if text[-1] != "0" else "1").join([text[:-1], ""])


def _more(value: int) -> int:
    return value + 4


NONE: tuple = ((), (), ())
CHECKPOINT = (("checkpoint",),) * 3


@check("17-ex5-verify", points=1.5)
def a_faithful_resume_is_verified(verify_resume, train, *, rng):
    """A faithful resume is verified; a loss or a hash that differs is named by its own rank, with the step."""
    cases: list[tuple] = [
        ("an honest run", [], NONE),
        (
            "a loss of rank 1, a hash of rank 2",
            [(1, ("losses", 5, _nudge)), (2, ("hashes", 6, _replace))],
            ((), ("losses", "step 6"), ("hashes", "step 7")),
        ),
        (
            "a gradient norm, a norm, the bytes",
            [(0, ("grad_norms", 4, _nudge)), (1, ("norms", 6, _nudge)), (2, ("state_bytes", 5, _more))],
            (("grad_norms", "step 5"), ("norms", "step 7"), ("state_bytes", "step 6")),
        ),
        ("numbers before the checkpoint", [(0, ("losses", 2, _nudge)), (1, ("hashes", 3, _replace))], NONE),
    ]
    _expect_told(verify_resume, train, cases, rng)


@check("17-ex5-verify", points=0.75)
def the_first_difference_is_told(verify_resume, train, *, rng):
    """Of several differences the first is named: the digest, the steps, the earliest step whatever the list."""
    cases: list[tuple] = [
        (
            "rank 2's hash and later loss",
            [(2, ("losses", 6, _nudge)), (2, ("hashes", 5, _replace))],
            _only(2, "hashes", "step 6"),
        ),
        (
            "rank 0's loss and later norm",
            [(0, ("losses", 4, _nudge)), (0, ("norms", 5, _nudge))],
            _only(0, "losses", "step 5"),
        ),
        ("steps that do not match on rank 1", [(1, ("steps", 6, None))], _only(1, "steps")),
        ("an honest run", [], NONE),
    ]
    _expect_told(verify_resume, train, cases, rng)


@check("17-ex5-verify", points=0.75)
def bytes_are_compared(verify_resume, train, *, rng):
    """The checkpoint counts, and one bit of the parameters; a digest of it that is not the recorded one is named."""
    cases: list[tuple] = [
        ("one bit of rank 1's parameters", [(1, ("parameters", 77, 1))], _only(1, "parameters")),
        ("−0.0 for rank 1's 0.0", [(1, ("parameters", 0, -(2**31)))], _only(1, "parameters")),
        ("every rank's digest of the checkpoint", [(None, ("sha256", 0, "0" * 64))], (("sha256",),) * 3),
        ("another checkpoint in its place", [(None, "other checkpoint")], (("step 5",),) * 3),
        ("an honest run", [], NONE),
    ]
    _expect_told(verify_resume, train, cases, rng)


@check("17-ex5-verify", points=1)
def no_rank_is_left_waiting(verify_resume, train, *, rng):
    """A missing, damaged or unfit checkpoint is named by all ranks; one rank's difference leaves nobody waiting."""
    cases: list[tuple] = [
        ("rank 0's digest of the checkpoint", [(0, ("sha256", 0, "0" * 64))], (None, (), ())),
        ("a flipped byte", [(None, "flipped byte")], CHECKPOINT),
        ("a checkpoint of tensors that are too short", [(None, "short checkpoint")], CHECKPOINT),
        ("rank 1 has no checkpoint", [(1, ("checkpoints", 0, []))], CHECKPOINT),
        ("no checkpoint", [(None, ("checkpoints", 0, []))], CHECKPOINT),
    ]
    _expect_told(verify_resume, train, cases, rng)


def _only(culprit: int, *words: str) -> tuple:
    """What this rank must name, where the others name nothing."""
    return tuple(words if rank == culprit else () for rank in range(3))


def _expect_told(verify_resume: Any, train: Any, cases: list[tuple], rng: np.random.Generator) -> None:
    """Of each (case, changes, words for each rank): it names these of its own report, or (None) anything."""
    order = rng.permutation(len(cases)).tolist()  # which report is the honest one is not told
    with tempfile.TemporaryDirectory(prefix="check-") as root:
        everyone = list(run_ranks(_drive_train, 3, (train, root)))
        _expect_reports(everyone)
        told = [_changed(everyone, cases[i][1], root) for i in order]
        results = run_ranks(_drive_verify, 3, (verify_resume, train, root, told))
    for number, (case, _, wanted) in enumerate(cases):
        rows = [mine["outcomes"][order.index(number)] for mine in results]
        for (rank, ((kind, text), verdict)), words in zip(each_rank(case, rows, evidence=_seen), wanted, strict=True):
            rank.expect(not kind, f"{kind} was raised: {text}")
            if words is None:
                continue
            ok, difference = verdict["ok"], verdict["first_difference"]
            right = ok is (not words) and (difference is None) == ok
            rank.expect(right, f"ok is {ok} and first_difference is {difference!r}, expected ok = {not words}")
            missing = [word for word in words if word not in str(difference)]
            rank.expect(not missing, f"first_difference should name {missing}, it is {difference!r}")
            many = _names_many(difference, words)
            rank.expect(not many, f"first_difference should name only the first, it is {difference!r}", ["names many"])
    kept = {"flipped", "other", "short", "step_00000004"}
    for rank, saved in each_rank("files", [sorted(set(mine["there"]) - kept) for mine in results]):
        rank.expect(not saved, f"verify_resume saved {saved}, but it should save nothing")


def _expect_reports(everyone: list[dict]) -> None:
    """What train returned has what is to be changed in it."""
    for rank, mine in each_rank("an honest run", everyone, evidence=lambda mine: type(mine).__name__):
        lists = isinstance(mine, dict) and all(isinstance(mine.get(name), list) for name in (*LISTS, "checkpoints"))
        whole = lists and all(len(mine[name]) == 7 for name in LISTS) and isinstance(mine["parameters"], np.ndarray)
        rank.expect(whole and mine["parameters"].dtype == np.float32, "train did not return 7 steps and its parameters")


def _seen(row: tuple) -> list:
    """The evidence in one rank's outcome: the kind of error, ok, and what the difference names."""
    (kind, _), verdict = row
    return [kind, str(verdict["ok"]), _words(verdict["first_difference"])]


#: What may differ, as it is called in a text.
WORDS = ("sha256", "checkpoint", "losses", "hashes", "grad_norms", " norms", "state_bytes", "parameters", "steps")


def _words(text: Any) -> list[str]:
    """The words among these that a text names."""
    return [word for word in (*WORDS, *(f"step {n}" for n in range(1, 8))) if word in f" {text}"]


def _names_many(text: Any, words: tuple[str, ...]) -> bool:
    """Does a text name more steps than one and another, or more words than one and what it has to do with?

    words: what it must name. Where a step alone is asked for, several lists may differ in it.
    """
    steps = [word for word in _words(text) if word.startswith("step ")]
    others = len(_words(text)) - len(steps)
    return len(steps) > MOST_NAMED or (others > MOST_NAMED + 1 and not all(word in steps for word in words))
