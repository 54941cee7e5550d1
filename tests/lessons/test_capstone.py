"""The capstone's pieces follow from the solutions, a student's own can take their place, its script runs by itself."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shlex
import shutil
import socket
import subprocess
import sys

import nbformat
import pytest
import yaml

import ranks
from autograder.checks import module
from autograder.grade.nbgrader import release
from autograder.lesson import keys, notebook, pieces

common, trainer = (module("17_capstone", name) for name in ("common", "trainer"))

LESSONS = tuple(pieces.PIECES)


@pytest.fixture
def lessons(tmp_path):
    """Copies of the solutions that the pieces come from, and of the capstone's folder."""
    for lesson in (*LESSONS, pieces.LESSON):
        shutil.copytree(notebook.SOLUTIONS / lesson, tmp_path / lesson, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def edit(folder, lesson, old, new):
    """Change a passage of a lesson's notebook."""
    path = folder / lesson / f"{lesson}.ipynb"
    nb = nbformat.read(path, as_version=4)
    assert sum(cell.source.count(old) for cell in nb.cells) == 1
    for cell in nb.cells:
        cell.source = cell.source.replace(old, new)
    nbformat.write(nb, path)


# What students get


def test_pieces_follow_the_solutions_and_so_do_the_keys_of_what_was_tried(lessons):
    before = keys.lesson_key(pieces.LESSON, lessons)
    old, new = "size = -(-numel // world_size)  # rounded up", "size = (numel + world_size - 1) // world_size"
    assert old in pieces.companions(lessons / pieces.LESSON)["pieces.py"].decode()
    edit(lessons, "08_zero1", old, new)
    assert new in pieces.companions(lessons / pieces.LESSON)["pieces.py"].decode()
    assert keys.lesson_key(pieces.LESSON, lessons) != before


def test_a_solution_without_a_piece_is_an_error(lessons):
    edit(lessons, "05_ddp", "def broadcast_parameters(module: nn.Module, src: int = 0)", "def broadcast(module, src=0)")
    with pytest.raises(ValueError, match="broadcast_parameters is missing in"):
        pieces.companions(lessons / pieces.LESSON)


def test_students_get_the_pieces_and_no_marker():
    text = (notebook.NOTEBOOKS / pieces.LESSON / "pieces.py").read_text()
    assert text == pieces.source()
    assert "###" not in text.replace('"### "', "")
    assert not release.stale([pieces.LESSON])


# A student's own


def test_own_pieces_come_from_finished_notebooks(lessons, capsys):
    edit(
        lessons,
        "05_ddp",
        '    """Copy rank `src`\'s parameters',
        '    print("mine")\n    """Copy rank `src`\'s',
    )
    edit(lessons, "08_zero1", "    norm = norm.sqrt()\n", '    raise NotImplementedError("write this function")\n')
    edit(lessons, "12_tensor", "class RowParallelLinear(nn.Module):", "class RowParallelLinear(nn.Module:")
    shutil.rmtree(lessons / "16_checkpoints")
    own = common.PIECES.own_pieces(lessons)
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 4
    assert said[0] == "05_ddp: your own pieces"
    assert "ClippingOptimizer" in said[1] and said[1].endswith("is not written yet")
    assert "RowParallelLinear is missing in" in said[2]
    assert "there is no" in said[3]
    assert set(own) == {"broadcast_parameters"}
    results = ranks.run(broadcasts, 2, (own["broadcast_parameters"],), echo=False)
    assert list(results) == [0.0, 0.0] and results.stdout == ["mine\n", "mine\n"]


def broadcasts(rank, world_size, broadcast):
    """A worker that uses a piece."""
    import torch

    layer = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(layer.weight, rank)
    broadcast(layer)
    return layer.weight.item()


def test_the_switch_takes_them_and_grading_does_not(lessons, monkeypatch):
    edit(lessons, "08_zero1", "self.gradient /= world_size", "self.gradient /= 1")  # a mistake of lesson 08
    cell = next(cell for cell in notebook.read(pieces.LESSON).cells if cell.id == "17-pieces")
    monkeypatch.chdir(lessons / pieces.LESSON)
    space = notebook.functions(pieces.LESSON, {cell.id: cell.source.replace("OWN_PIECES = False", "OWN_PIECES = True")})
    assert space["ZeroOptimizer"] is not space["pieces"].ZeroOptimizer
    reference = notebook.functions(pieces.LESSON)
    own, right = (ranks.run(first_norm, 2, (names["Trainer"],), echo=False)[0] for names in (space, reference))
    assert own == pytest.approx(2 * right)  # the notebook runs with the student's own
    trainer.steps_follow_one_process(space["Trainer"])  # the grader with the reference


@pytest.mark.parametrize("there", [(), ("pieces.py",), ("faults.py",)], ids=" ".join)
def test_a_notebook_without_its_modules_says_what_to_put_where(tmp_path, there):
    """As on a site to which only the notebook was uploaded."""
    (code,) = (cell.source for cell in notebook.read(pieces.LESSON).cells if cell.id == "17-pieces")
    for name in there:
        (tmp_path / name).write_text("")
    command = [sys.executable, "-c", f"from importlib.util import find_spec\n{code}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: put pieces.py and faults.py of lesson 17 next to this notebook: "
        "they come with it, in the folder notebooks/17_capstone"
    )


def first_norm(rank, world_size, trainer_class):
    """The norm of the gradient in the first step."""
    return trainer_class(rank, world_size).gradients(1)[1]


# As a script


def exported(lessons):
    """The capstone's folder, with its notebook as a script."""
    folder = lessons / pieces.LESSON
    pieces.copy_companions(folder, folder)
    subprocess.run(
        [sys.executable, "-m", "jupytext", "--to", "py", "17_capstone.ipynb"], cwd=folder, check=True, timeout=900
    )
    return folder


@pytest.mark.slow
@pytest.mark.thorough
def test_the_exported_notebook_runs_under_torchrun(lessons):
    folder = exported(lessons)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", "17_capstone.py"]
    environment = {**os.environ, "CHECKPOINT_DIR": str(folder / "checkpoints"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    told = [float(loss) for loss in re.findall(r"^step +\d+  loss (.*)$", done.stdout, re.MULTILINE)]
    assert told == ranks.run(notebook.functions(pieces.LESSON)["train"], 4, (20, None, None))[0]["losses"]
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step_00000010"]


# On a cluster

CLUSTER = notebook.ROOT / "examples" / "cluster"
#: Stand-ins: both nodes of the job are this machine, and srun starts its command once for each of them.
STAND_INS = {
    "scontrol": "echo 127.0.0.1; echo 127.0.0.1",
    "srun": 'while [[ $1 == --* ]]; do shift; done\n"$@" & "$@" & wait -n; first=$?; wait -n; exit $((first + $?))',
    "python": f'exec {sys.executable} "$@"',
    "torchrun": f'exec {sys.executable} -m torch.distributed.run --local-addr 127.0.0.1 "$@"',
}


def free_port(among):
    """A port among these on which nobody listens now."""
    for port in random.sample(among, len(among)):
        with contextlib.suppress(OSError), socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


@pytest.mark.slow
@pytest.mark.thorough
def test_the_slurm_file_trains_on_two_nodes_and_goes_on(lessons, tmp_path):
    folder = exported(lessons)
    for name, text in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    shutil.copy(CLUSTER / "newest_whole_checkpoint.py", folder)
    number = free_port(range(10_000, 30_000)) - 10_000  # the script derives the port from the job's number
    job = {"SLURM_JOB_ID": str(number), "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[1-2]"}
    job |= {"SLURM_CPUS_PER_TASK": "4"}  # as the script's header asks
    environment = {**os.environ, **job, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    expected = ranks.run(notebook.functions(pieces.LESSON)["train"], 4, (20, None, None))[0]["losses"]
    for first in (1, 11):  # the second time Slurm has put the job back into its queue
        command = ["bash", str(CLUSTER / "capstone.sbatch")]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1800)
        assert done.returncode == 0, done.stderr
        told = re.findall(r"^step +(\d+)  loss (.*)$", done.stdout, re.MULTILINE)
        assert [(int(step), float(loss)) for step, loss in told] == list(enumerate(expected, start=1))[first - 1 :]


def test_the_kubernetes_file_starts_what_the_slurm_file_starts():
    service, job = yaml.safe_load_all((CLUSTER / "capstone.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    script = (CLUSTER / "capstone.sbatch").read_text()
    slurm = shlex.split(re.search(r"^srun \S+ (torchrun .*?py) ", script.replace("\\\n", " "), re.MULTILINE)[1])

    def options(command):
        """What the command is and starts, and its options but for those that say which machines take part."""
        places = ("--nnodes=", "--rdzv-id=", "--rdzv-endpoint=")
        return [word for word in command if not word.startswith(places)]

    assert options(container["command"]) == options(slurm)
    name, nodes = job["metadata"]["name"], job["spec"]["completions"]
    assert {f"--nnodes={nodes}", f"--rdzv-endpoint={name}-0.{pod['subdomain']}:29400"} <= set(container["command"])
    assert job["spec"]["parallelism"] == nodes, "all agents must run at once"
    assert job["spec"]["completionMode"] == "Indexed" and service["spec"]["selector"] == {"job-name": name}
    assert service["metadata"]["name"] == pod["subdomain"] and service["spec"]["clusterIP"] == "None"
    variables = {entry["name"]: entry["value"] for entry in container["env"]}
    [mount] = container["volumeMounts"]
    assert variables["CHECKPOINT_DIR"].startswith(mount["mountPath"]), "the checkpoint must be on the shared volume"
    assert mount["name"] == pod["volumes"][0]["name"]
