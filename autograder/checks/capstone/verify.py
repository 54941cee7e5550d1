"""Lesson 17, exercise 5: a resumed run compared with one that was never stopped."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from autograder.checking.check import check
from autograder.checking.expect import each_rank
from autograder.checks.capstone.common import LISTS, PIECES, equip, run_ranks, tensor_bytes, what_it_says


def _drive_verify(rank: int, world_size: int, verify_resume: Any, train: Any, root: str, cases: list[tuple]) -> dict:
    equip(train)
    equip(verify_resume)
    mine = train(rank, world_size, 7, root, 4)
    everyone: list[Any] = [None] * world_size
    dist.all_gather_object(everyone, mine)
    outcomes = []
    for _, changes in cases:
        told = [{**run, "parameters": run["parameters"].copy()} for run in everyone]
        for name in (*LISTS, "checkpoints"):
            for run in told:
                run[name] = [dict(entry) if isinstance(entry, dict) else entry for entry in run[name]]
        for culprit, change in changes:
            _change(rank, world_size, told, culprit, change, root)
        dist.barrier()
        verdicts: list[Any] = []
        said = what_it_says(lambda t=told, v=verdicts: v.append(verify_resume(rank, world_size, t, 7)))
        verdict = verdicts[0] if verdicts and isinstance(verdicts[0], dict) else {}
        outcomes.append((said, {name: verdict.get(name, "missing") for name in ("ok", "first_difference")}))
    return {"outcomes": outcomes, "there": sorted(path.name for path in Path(root).iterdir())}


def _change(rank: int, world_size: int, told: list[dict], culprit: int | None, change: Any, root: str) -> None:
    """Change what is reported of rank `culprit`'s run, or of every rank's (None)."""
    if change == "other checkpoint":  # whole, with a right digest, and of other parameters
        state, _ = PIECES.load_sharded(told[rank]["checkpoints"][0]["path"])
        state["master"] += 1e-3
        path = PIECES.save_sharded(state, f"{root}/other", 4)
        mine: Any = hashlib.sha256(b"".join(tensor_bytes(state))).hexdigest()
        digests: list[Any] = [None] * world_size
        dist.all_gather_object(digests, mine)
        for run, digest in zip(told, digests, strict=True):
            run["checkpoints"] = [{"step": 4, "path": str(path), "sha256": digest}]
        return
    if change == "flipped byte":
        shutil.copytree(told[0]["checkpoints"][0]["path"], f"{root}/of-{rank}/step_00000004")
        dist.barrier()
        if rank == 1:
            file = Path(f"{root}/of-0/step_00000004/shard_00001.bin")
            data = bytearray(file.read_bytes())
            data[99] ^= 4
            file.write_bytes(data)
        for run in told:
            run["checkpoints"][0]["path"] = f"{root}/of-0/step_00000004"
        return
    for run in told if culprit is None else [told[culprit]]:
        name, place, value = change
        if name == "checkpoints":
            run[name] = value
        elif name == "sha256":
            run["checkpoints"][0]["sha256"] = value
        elif name == "parameters":
            run[name].view(np.int32)[place] ^= 1
        elif name == "steps":
            del run["steps"][place]
        else:
            run[name][place] = value(run[name][place])


def _nudge(value: float) -> float:
    return float(np.nextafter(value, 9.0))


def _replace(text: str) -> str:
    return ("0" if text[-1] != "0" else "1").join([text[:-1], ""])


def _more(value: int) -> int:
    return value + 4


@check("17-ex5-verify")
def resume_is_verified_or_the_difference_told(verify_resume, train, *, rng):
    """A faithful resume is verified; every rank names what differs on any of them; no rank hangs or raises."""
    cases: list[tuple] = [
        ("an honest run", [], ((), (), ())),
        (
            "a loss of rank 1, a hash of rank 2",
            [(1, ("losses", 5, _nudge)), (2, ("hashes", 6, _replace))],
            ((), ("losses", "step 6"), ("hashes", "step 7")),
        ),
        (
            "rank 0's digest of the checkpoint, one bit of rank 1's parameters, rank 2's hash and later loss",
            [(0, ("sha256", 0, "0" * 64)), (1, ("parameters", 77, None)),
             (2, ("losses", 6, _nudge)), (2, ("hashes", 5, _replace))],
            (("sha256",), ("parameters",), ("hashes", "step 6")),
        ),
        (
            "a gradient norm, a norm, the bytes",
            [(0, ("grad_norms", 4, _nudge)), (1, ("norms", 6, _nudge)), (2, ("state_bytes", 5, _more))],
            (("grad_norms", "step 5"), ("norms", "step 7"), ("state_bytes", "step 6")),
        ),
        ("numbers before the checkpoint", [(0, ("losses", 2, _nudge)), (1, ("hashes", 3, _replace))], ((), (), ())),
        ("another checkpoint in its place", [(None, "other checkpoint")], (("step 5",),) * 3),
        ("steps that do not match on rank 1", [(1, ("steps", 6, None))], ((), ("steps",), ())),
        ("a flipped byte", [(None, "flipped byte")], (("checkpoint",),) * 3),
        ("no checkpoint", [(None, ("checkpoints", 0, []))], (("checkpoint",),) * 3),
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="check-") as root:
        arguments = (verify_resume, train, root, [case[:2] for case in cases])
        results = run_ranks(_drive_verify, 3, arguments)
    for number, (case, _, wanted) in enumerate(cases):
        rows = [mine["outcomes"][number] for mine in results]
        for (rank, ((kind, text), verdict)), words in zip(each_rank(case, rows, evidence=_seen), wanted, strict=True):
            rank.expect(not kind, f"{kind} was raised: {text}")
            ok, difference = verdict["ok"], verdict["first_difference"]
            right = ok is (not words) and (difference is None) == ok
            rank.expect(right, f"ok is {ok} and first_difference is {difference!r}, expected ok = {not words}")
            missing = [word for word in words if word not in str(difference)]
            rank.expect(not missing, f"first_difference should name {missing}, it is {difference!r}")
    kept = {"of-0", "of-1", "of-2", "other", "step_00000004"}
    for rank, saved in each_rank("files", [sorted(set(mine["there"]) - kept) for mine in results]):
        rank.expect(not saved, f"verify_resume saved {saved}, but it should save nothing")


def _seen(row: tuple) -> list:
    """The evidence in one rank's outcome: the kind of error, ok, and what the difference names."""
    (kind, _), verdict = row
    return [kind, str(verdict["ok"]), _words(verdict["first_difference"])]


def _words(text: Any) -> list[str]:
    """The words among these that a text names."""
    found = ("sha256", "checkpoint", "losses", "hashes", "grad_norms", " norms", "state_bytes", "parameters", "steps")
    return [word for word in (*found, *(f"step {n}" for n in range(1, 8))) if word in f" {text}"]
