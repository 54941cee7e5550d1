"""Exercise 4, `rotate`: how many checkpoints are kept."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autograder.checking.check import check
from autograder.checking.expect import fail
from autograder.checking.instruments.filesystem import watch
from autograder.checking.stage import run_ranks
from autograder.checks.checkpoints.format import damage, draw, scratch_folder, write_checkpoint
from autograder.checks.checkpoints.states import attempt, expect_error, expect_returned


@dataclass
class Rotation:
    """A root with `steps`, some spoiled, of which `keep_last` are to be kept: `left` remain."""

    name: str
    steps: list[int]
    keep_last: int
    left: list[int]
    flipped: tuple[int, ...] = ()  # complete, but a shard's byte is another
    headless: tuple[int, ...] = ()  # without a manifest


ROTATIONS = [
    Rotation("keep 2 of 5", [10, 20, 30, 40, 50], 2, [40, 50]),
    Rotation("keep 1 of 2, eight and nine digits", [99_999_999, 100_000_000], 1, [100_000_000]),
    Rotation("keep 3 of 2", [10, 20], 3, [10, 20]),
    Rotation("keep 1 of 4, a byte of the newest is flipped", [10, 20, 30, 40], 1, [30, 40], flipped=(40,)),
    Rotation(
        "keep 2 of 4, the newest two are damaged", [10, 20, 30, 40], 2, [20, 30, 40], flipped=(30,), headless=(40,)
    ),
    Rotation("keep 1 of 3, the last but one is damaged", [10, 20, 30], 1, [30], headless=(20,)),
    Rotation("keep 1 of 3, none of which loads", [10, 20, 30], 1, [10, 20, 30], flipped=(10, 30), headless=(20,)),
    Rotation("nothing there", [], 1, []),
]
#: What else is in a root: a file and a folder.
OTHERS = ("notes.txt", "step_00000001.bak")


def _rotation_root(root: Path, rotation: Rotation, rng: np.random.Generator) -> None:
    """Write the checkpoints of a rotation, spoil some, and add things that are none."""
    root.mkdir()
    for step in rotation.steps:
        path = write_checkpoint(root, draw(rng, 2, step))
        if step in rotation.flipped:
            damage(path / "shard_00001.bin", "one bit of the last byte")
        if step in rotation.headless:
            (path / "manifest.json").unlink()
    (root / OTHERS[0]).write_text("not ours")
    (root / OTHERS[1]).mkdir()


def _rotate_driver(rank, world_size, folder, rotate, keeps):
    """Rotate every root. The outcomes; the numbers of the roots in which a checkpoint at some time lacked a file."""
    torn: set[int] = set()
    now = {"number": 0}
    sizes = {path: len(os.listdir(path)) for path in folder.glob("*/step_*") if path.is_dir()}

    @contextlib.contextmanager
    def at(kind, path, target, fd):
        folders = [p for p in (folder / str(now["number"])).glob("step_*") if p.is_dir()]
        if any(len(os.listdir(p)) != sizes.get(p) for p in folders):
            torn.add(now["number"])
        yield

    watch(folder, at, rotate)
    outcomes = []
    for number, keep_last in enumerate(keeps):
        now["number"] = number
        root = folder / str(number)
        outcomes.append(attempt(rotate, str(root) if number % 2 else root, keep_last, plain=_as_list))
    return outcomes, sorted(torn)


def _as_list(value: Any) -> Any:
    return [os.fspath(path) for path in value] if isinstance(value, (list, tuple)) else repr(value)


@check("16-ex4-upkeep", points=1)
def rotation_keeps_one_that_loads(rotate, *, rng):
    """The last ones and the newest that loads stay, the others go, and none is ever left without some of its files."""
    with scratch_folder() as folder:
        for number, rotation in enumerate(ROTATIONS):
            _rotation_root(folder / str(number), rotation, rng)
        write_checkpoint(folder / str(len(ROTATIONS)), draw(rng, 2, 10))
        write_checkpoint(folder / str(len(ROTATIONS) + 1), draw(rng, 2, 10))
        keeps = [*(rotation.keep_last for rotation in ROTATIONS), 0, -1]
        outcomes, torn = run_ranks(_rotate_driver, 1, (folder, rotate, keeps))[0]
        for number, rotation in enumerate(ROTATIONS):
            case, root, outcome = rotation.name, folder / str(number), outcomes[number]
            expect_returned(case, outcome, "rotate")
            left = sorted(int(p.name[5:]) for p in root.iterdir() if re.fullmatch(r"step_\d+", p.name))
            if left != rotation.left:
                fail(f"rotate left the steps {left}, expected {rotation.left}", case, left)
            want = [str(root / f"step_{step:08d}") for step in rotation.steps if step not in rotation.left]
            if outcome.value != want:
                got = [Path(p).name for p in outcome.value] if isinstance(outcome.value, list) else outcome.value
                fail(f"rotate returned {got}, expected the paths of {[Path(p).name for p in want]}", case, got)
            if not all((root / name).exists() for name in OTHERS):
                fail("rotate deleted something that is no checkpoint", case, "others")
            more = len(list(root.iterdir())) - len(left) - len(OTHERS)
            if more:
                text = f"rotate left {more} entr{'y' if more == 1 else 'ies'} of its own"
                fail(f"{text} in root", case, ["left over", more])
            if number in torn:
                text = "at one moment a folder with a checkpoint's name had lost some of its files"
                fail(f"{text}: rotate, killed then, would have left it so", case, "torn")
        for number, outcome in zip(keeps[-2:], outcomes[-2:], strict=True):
            expect_error(f"keep_last = {number}", outcome, "ValueError", "keep_last")
