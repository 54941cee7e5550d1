"""What checks watch answers with sees what it says that it sees."""

import contextlib
import os
import subprocess
import sys
import textwrap

import pytest
import torch

import ranks
from autograder.checks import module
from autograder.checks.expect import CheckFailed
from autograder.checks.instruments import filesystem, memory

durability = module("16_checkpoints", "durability")


def test_live_bytes_counts_what_anything_holds():
    meter = memory.LiveBytes()
    before = meter.now()
    with meter:
        held = torch.zeros(1000)
        (held + 1).sum()  # 4000 bytes more for a moment
    assert meter.now() - before >= 4000
    assert 8000 <= meter.peak - before < 12000
    del held
    assert meter.now() == before


def test_bytes_held_follows_modules_and_shared_memory():
    layer = torch.nn.Linear(3, 2)
    held = {"layer": layer, "view": layer.weight.detach()[0], "more": [torch.zeros(4)]}
    assert memory.bytes_held(held) == 4 * (6 + 2 + 4)
    assert memory.bytes_held(held, besides=layer.parameters()) == 4 * 4


def save(folder, order):
    """Put a folder with two files in its place, in the given order of steps."""
    root = folder / "files"
    temporary, final = root / ".tmp", root / "final"

    def sync(path):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)

    def write(name):
        with open(temporary / name, "wb") as file:
            file.write(b"four")
            file.flush()
            os.fsync(file.fileno())

    steps = {
        "make": lambda: os.mkdir(temporary),
        "a": lambda: write("a"),
        "b": lambda: write("b"),
        "folder": lambda: sync(temporary),
        "rename": lambda: os.rename(temporary, final),
        "root": lambda: sync(root),
    }
    for step in order.split():
        steps[step]()


def saved_in_a_rank(rank, world_size, folder, order):
    log = durability.logged(folder, rank)
    save(folder, order)
    log.returned()


def events_of(folder, order):
    (folder / "files").mkdir()
    ranks.run(saved_in_a_rank, 1, (folder, order))
    return filesystem.read_log(folder / "log")


def test_a_log_holds_every_change_in_order(tmp_path):
    events = events_of(tmp_path, "make a rename")
    assert [event.kind for event in events] == [
        *("make", "made", "create", "created", "write", "written", "half", "written", "fsync", "fsynced"),
        *("rename", "renamed", "returned"),
    ]
    assert [event.bytes for event in events if event.kind == "written"] == [2, 2]
    created = next(event for event in events if event.kind == "created")
    assert created.id == filesystem.id_of(events, tmp_path / "files" / "final" / "a")


@pytest.mark.parametrize(
    ("order", "wrong"),
    [
        ("make a b folder rename root", ""),
        ("make a folder b rename root", "between creating its last file and the rename"),
        ("make a b rename root", "did not fsync the checkpoint's folder"),
        ("make a b folder rename", "did not fsync the folder above"),
        ("make a b folder root rename", "did not fsync the folder above"),
    ],
)
def test_only_a_durable_order_is_durable(tmp_path, order, wrong):
    events, final = events_of(tmp_path, order), tmp_path / "files" / "final"
    with pytest.raises(CheckFailed, match=wrong) if wrong else contextlib.nullcontext():
        durability.expect_durable("a case", events, final, "save")


def test_what_another_thread_has_freed_is_not_counted():
    """As gloo's threads do with the copies that they send."""
    code = """
        import threading, torch
        from autograder.checks.instruments.memory import Resident
        def work():
            for _ in range(3):
                torch.ones(4_300_000)
                held = [torch.ones(4_300_000), torch.ones(4_000_000)]
                held.pop(0)
        memory = Resident()
        thread = threading.Thread(target=work); thread.start(); thread.join()
        print(memory.above(0, patience=0))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 4e6
