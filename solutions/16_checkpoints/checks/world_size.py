"""Exercise 4, `reshard`: a checkpoint for another number of ranks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from autograder.checking.check import check
from autograder.checking.expect import count_of_ranks, fail
from autograder.checking.instruments.filesystem import Event, read_log
from autograder.checking.stage import run_ranks
from autograder.checks.checkpoints.durability import during, expect_durable, logged
from autograder.checks.checkpoints.format import (
    CREATED,
    damage,
    draw,
    expect_content,
    fingerprint,
    recut,
    scratch_folder,
    tampered,
    write_checkpoint,
)
from autograder.checks.checkpoints.states import attempt, expect_error, expect_returned


def _reshard_driver(rank, world_size, folder, reshard, cases):
    outcomes = []
    log = logged(folder, 0, reshard)
    for path, target, count in cases:
        log.add("begin", str(target))
        outcomes.append(attempt(reshard, path, target, count, plain=_as_path))
        log.returned(str(target))
    return outcomes


def _as_path(value: Any) -> str:
    return str(value) if value is None else os.fspath(value)


@check("16-ex4-upkeep", points=1.5)
def resharding_keeps_every_byte(reshard, *, rng):
    """The new checkpoint holds every byte, dtype and value, cut anew, and gets its name by one durable rename."""
    with scratch_folder() as folder:
        files, cases, wanted = folder / "files", [], []
        first = draw(rng, 4, 1234)
        for number, counts in enumerate([(2, 3, 4), (1,), (7,)]):
            path, saved = write_checkpoint(files / f"source{number}", first), first
            for hop, count in enumerate(counts):
                target = files / f"target{number}.{hop}"
                cases.append((path, str(target) if hop % 2 else target, count))
                before, saved = saved, recut(saved, count)
                wanted.append((f"{len(before.pieces)} to {count_of_ranks(count)}", target / saved.name, saved))
                path = target / saved.name
        leftover = files / "target0.0" / ".tmp_step_00001234"
        leftover.mkdir(parents=True)
        (leftover / "shard_00005.bin").write_bytes(b"of a killed save")
        plain = draw(rng, 2, 6, tensors=False)
        cases.append((write_checkpoint(files / "plain", plain), files / "target3", 3))
        wanted.append(("no tensors, 2 to 3 ranks", files / "target3" / plain.name, recut(plain, 3)))
        copied = draw(rng, 3, 7)
        cases.append((write_checkpoint(files / "copied", copied).rename(files / "best"), files / "target4", 2))
        wanted.append(
            ("a copy in a folder called best, 3 to 2 ranks", files / "target4" / copied.name, recut(copied, 2))
        )
        sources = [*files.glob("source*"), files / "best"]
        before = [fingerprint(path) for path in sources]
        outcomes = run_ranks(_reshard_driver, 1, (folder, reshard, cases))[0]
        events = read_log(folder / "log")
        for (case, path, saved), outcome, (_, target, _) in zip(wanted, outcomes, cases, strict=True):
            expect_returned(case, outcome, "reshard")
            expect_content(case, path, saved, "the new checkpoint")
            name = Path(outcome.value).name
            if Path(outcome.value) != path:
                fail(f"reshard returned …/{name}, expected the new checkpoint's path", case, name)
            _expect_made_anew(case, path, during(events, str(target)))
        if [fingerprint(path) for path in sources] != before:
            fail("reshard changed the original", "4 to 2 ranks", "original changed")


def _expect_made_anew(case: str, path: Path, events: list[Event]) -> None:
    """The new checkpoint is alone in its root, has a date of its own, and came there by one durable rename."""
    if [p.name for p in path.parent.iterdir()] != [path.name]:
        fail("target_root holds more than the new checkpoint", case, "left over")
    if json.loads((path / "manifest.json").read_bytes())["created"] == CREATED:
        fail("created is still that of the original", case, "created")
    if any(e.kind in ("create", "make") and path in (Path(e.path), Path(e.path).parent) for e in events):
        text = f"reshard wrote into {path.name} itself: nothing may have this name before the rename"
        fail(text, case, "named")
    expect_durable(case, events, path, "reshard")


@check("16-ex4-upkeep", points=0.5)
def resharding_refuses_damage(reshard, *, rng):
    """Damage, or a step that is there (named in the text), is a `CheckpointError`; nothing is written then."""
    with scratch_folder() as folder:
        files = folder / "files"
        files.mkdir()
        flipped = write_checkpoint(files / "flipped", draw(rng, 3, 10))
        damage(flipped / "shard_00001.bin", "one bit of the first byte")
        wrong = [("one bit of a shard", flipped, ("shard_00001.bin",)), *tampered(files, rng, 3)]
        cases = [(path, files / f"target{i}", 2) for i, (_, path, _) in enumerate(wrong)]
        intact = draw(rng, 3, 10)
        cases.append((write_checkpoint(files / "intact", intact), files / "cut", 2))
        good = write_checkpoint(files / "good", draw(rng, 2, 20))
        there = write_checkpoint(files / "there", draw(rng, 3, 20))
        before = fingerprint(there)
        cases += [(good, files / "there", 3), (good, files / "none", 0), (good, files / "none", -1)]
        cases.append((good, files / "good", 1))
        outcomes = run_ranks(_reshard_driver, 1, (folder, reshard, cases))[0]
        case = "the step is there already"
        expect_error(case, outcomes[-4], "CheckpointError", "step_00000020")
        if fingerprint(there) != before:
            fail("the checkpoint that was there has changed", case, "overwritten")
        if [path.name for path in there.parent.iterdir()] != [there.name]:
            fail("reshard wrote something before the error", case, "written beside")
        # After that: who writes before the look at the step writes before the look at the shards as well.
        for i, ((case, _, mentions), outcome) in enumerate(zip(wrong, outcomes, strict=False)):
            expect_error(case, outcome, "CheckpointError", mentions)
            target = files / f"target{i}"
            if target.is_dir() and list(target.iterdir()):
                fail("reshard wrote something before the error", case, "written")
        case = "an intact checkpoint after all those"
        expect_returned(case, outcomes[len(wrong)], "reshard")
        expect_content(case, files / "cut" / intact.name, recut(intact, 2), "the new checkpoint")
        for number, outcome in ((0, outcomes[-3]), (-1, outcomes[-2])):
            expect_error(f"world_size = {number}", outcome, "ValueError", "world_size")
        expect_error("target_root is the original's own root", outcomes[-1], "CheckpointError", "step_00000020")
