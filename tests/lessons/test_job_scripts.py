"""The job scripts of examples/cluster: what they do after each end of a run, and that pages print them and no copy."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

import ranks
from autograder.lesson import notebook, pieces

CLUSTER = notebook.ROOT / "examples" / "cluster"
HELPER = "newest_whole_checkpoint.py"


# What a page prints


def test_pages_include_the_job_scripts_and_hold_no_copy():
    pages = {path: path.read_text() for path in [*notebook.ROOT.glob("book/**/*.md"), *notebook.ROOT.glob("README.md")]}
    pages |= {path: path.read_text() for path in notebook.SOLUTIONS.glob("*/*.ipynb")}
    assert not [path for path, text in pages.items() if re.search(r"#SBATCH|\bsrun .*(torchrun|python)", text)]
    included = re.findall(r"\{literalinclude\} \.\./examples/cluster/(\S+)", "\n".join(pages.values()))
    assert sorted(included) == sorted(path.name for path in CLUSTER.iterdir())
    assert "{literalinclude} ../examples/cluster/train.sbatch" in pages[notebook.ROOT / "book" / "06_launch.md"]


def test_nothing_of_a_job_script_is_cut_on_its_page():
    """A page shows 96 characters of a line; the rest must be scrolled to, and is missing on paper."""
    long = [
        f"{path.name}: {line}" for path in CLUSTER.iterdir() for line in path.read_text().splitlines() if len(line) > 96
    ]
    assert not long, "\n".join(long)


# After the run

#: A run that ends as the environment says: with a status, and with a checkpoint of step SAVES or without one.
SRUN = """
while [[ $1 == --* ]]; do shift; done
echo "$CHECKPOINT_DIR ${RESUME_FROM:-}" > started
echo "$* share=${TORCH_DISABLE_SHARE_RDZV_TCP_STORE:-0}" > command
if [ "${TORCH_FR_DUMP_TEMP_FILE:-}" ]; then echo dump > "${TORCH_FR_DUMP_TEMP_FILE}0"; fi
if [ "$SAVES" ]; then
    mkdir -p "$CHECKPOINT_DIR/step_$(printf %08d "$SAVES")"
    echo "$SAVES" > "$CHECKPOINT_DIR/step"
fi
if [ "$FINISHES" ]; then touch "$CHECKPOINT_DIR/done"; fi
exit "$STATUS"
"""
STAND_INS = {
    "srun": SRUN,
    # A requeue ends the script. Here it fails instead, and the script ends with the run's status.
    "scontrol": 'if [ "$1" = requeue ]; then echo "$2" > requeued; exit 1; fi; echo node1; echo node2',
    "python": 'ls -d "$2"/step_* 2> /dev/null | tail -n 1',  # as the helper of which the tests are below
}
JOB = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "node[1-2]"}
NODE = {"SLURM_CPUS_PER_TASK": "2", "SLURM_GPUS_ON_NODE": "8"}


@pytest.fixture
def submit(tmp_path):
    """Run a job script with stand-ins, which save this step: its exit status, and whether it asked to be requeued."""
    programs, folder = tmp_path / "programs", tmp_path / "folder"
    for path in (programs, folder):
        path.mkdir()
    for name, text in STAND_INS.items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)

    def run(script, *, status, saves=None, finishes=False, restarts=None, job="1234567"):
        (folder / "requeued").unlink(missing_ok=True)
        run = {"STATUS": str(status), "SAVES": str(saves or ""), "FINISHES": "yes" * finishes, "SLURM_JOB_ID": job}
        run |= {"CHECKPOINT_DIR": str(folder / "runs"), "PATH": f"{programs}:/usr/bin:/bin"}
        if restarts is not None:
            run["SLURM_RESTART_COUNT"] = str(restarts)
        done = subprocess.run(["bash", CLUSTER / script], cwd=folder, env={**JOB, **NODE, **run}, timeout=60)
        return done.returncode, (folder / "requeued").exists()

    run.folder = folder
    return run


SCRIPTS = ("capstone.sbatch", "capstone_srun.sbatch", "train.sbatch")


def test_these_are_all_scripts():
    assert sorted(SCRIPTS) == sorted(path.name for path in CLUSTER.glob("*.sbatch"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_trained_run_is_done(submit, script):
    assert submit(script, status=0, saves=10, finishes=True) == (0, False)


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("status", [1, 137, 143])
def test_a_run_that_saved_comes_back_however_often(submit, script, status):
    assert submit(script, status=status, saves=10, restarts=50) == (status, True)


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_error_that_comes_back_ends_after_four_starts(submit, script):
    ends = [submit(script, status=1, restarts=restarts) for restarts in (None, 1, 2, 3, 4)]
    assert ends == [(1, True)] * 3 + [(1, False)] * 2


@pytest.mark.parametrize("script", SCRIPTS)
def test_only_failures_in_a_row_end_a_long_run(submit, script):
    for day in range(1, 4):  # each start saves, and is stopped at its time limit; then one fails before it saves
        assert submit(script, status=1, saves=10 * day, restarts=2 * day) == (1, True)
        assert submit(script, status=1, restarts=2 * day + 1) == (1, True)
    ends = [submit(script, status=1, restarts=restarts) for restarts in range(8, 12)]
    assert ends == [(1, True)] * 2 + [(1, False)] * 2
    assert submit(script, status=1, job="1234568") == (1, True)  # a job that somebody starts after that counts anew


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_checkpoint_from_before_this_start_is_no_progress(submit, script):
    assert submit(script, status=1, saves=10, restarts=7) == (1, True)
    ends = [submit(script, status=1, saves=10, restarts=8 + again) for again in range(4)]
    assert ends == [(1, True)] * 3 + [(1, False)]  # step 10 again and again: that would never end
    if script != "train.sbatch":  # whose program looks for its own checkpoint
        assert (submit.folder / "started").read_text().split()[1].endswith("/step_00000010")


def test_the_last_step_counts_and_not_the_status_of_torchrun(submit):
    ends = [submit("train.sbatch", status=0) for _ in range(4)]
    assert ends == [(1, True)] * 3 + [(1, False)]  # it left without an error, and is not done
    assert submit("train.sbatch", status=137, finishes=True) == (0, False)  # an agent was killed after the last step


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_agent_that_restarts_its_ranks_gets_a_new_store(submit, script):
    """Otherwise they find the addresses of dead ranks in the old one (PyTorch 2.13)."""
    submit(script, status=0, finishes=True)
    command = (submit.folder / "command").read_text()
    restarts = re.search(r"--max-restarts=(\d+)", command)
    assert not (restarts and int(restarts[1])) or "share=1" in command


def test_dumps_and_error_files_of_each_start_stay_beside_the_checkpoint(submit):
    for restarts in (None, 1):
        submit("train.sbatch", status=1, restarts=restarts)
        logs = submit.folder / "runs" / f"logs-1234567-{restarts or 0}"
        assert [path.name for path in logs.rglob("*") if path.is_file()] == ["rank_0"]  # and the folder was there
        assert f"--log-dir={logs} " in (submit.folder / "command").read_text()


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_folder_can_be_chosen_and_follows_from_the_job_otherwise(submit, script):
    text = (CLUSTER / script).read_text()
    assert "${CHECKPOINT_DIR:-$PWD/checkpoints-$SLURM_JOB_ID}" in text
    assert "--open-mode=append" in text and "--signal=TERM@" in text and "--cpus-per-task=" in text


# The newest whole checkpoint


def saves(rank, world_size, root, steps):
    """Checkpoints of these steps, by lesson 16's function."""
    import torch
    from pieces import save_sharded

    for step in steps:
        save_sharded({"weights": torch.full((3,), float(step)), "step": step}, root, step)


@pytest.fixture
def newest(tmp_path, monkeypatch):
    """A function that calls the helper for the folder `root`, as the job scripts do: (what it prints, its errors)."""
    shutil.copy(CLUSTER / HELPER, tmp_path)
    (tmp_path / pieces.FILE).write_text(pieces.source())
    monkeypatch.syspath_prepend(tmp_path)
    root = tmp_path / "root"

    def call():
        done = subprocess.run([sys.executable, HELPER, root], cwd=tmp_path, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip(), done.stderr

    call.root = root
    return call


def test_the_helper_finds_the_newest_by_number(newest):
    assert newest() == ("", "")  # no folder
    ranks.run(saves, 2, (newest.root, (9, 99_999_999, 100_000_000)), echo=False)
    (newest.root / "step_of_mine").mkdir()
    (newest.root / ".tmp_step_200000000").mkdir()
    assert newest() == (f"{newest.root}/step_100000000", "")


@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "manifest"])
def test_a_damaged_newest_checkpoint_is_moved_aside_and_the_older_one_chosen(newest, damage):
    ranks.run(saves, 2, (newest.root, (10, 20)), echo=False)
    shard = sorted((newest.root / "step_00000020").glob("shard_*"))[1]
    data = shard.read_bytes()
    if damage == "cut":
        shard.write_bytes(data[:-1])
    elif damage == "changed":  # the size is right: only the digest shows it
        shard.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    elif damage == "gone":
        shard.unlink()
    else:
        (newest.root / "step_00000020" / "manifest.json").write_text("{}")
    found, said = newest()
    assert found == f"{newest.root}/step_00000010"
    assert "step_00000020" in said and said.count("\n") == 1
    left = sorted(path.name for path in newest.root.iterdir())
    assert len(left) == 2 and re.fullmatch(r"damaged_\d+_step_00000020", left[0]) and left[1] == "step_00000010"
    ranks.run(saves, 2, (newest.root, (20,)), echo=False)  # the run comes to this step again
    assert newest() == (f"{newest.root}/step_00000020", "")
