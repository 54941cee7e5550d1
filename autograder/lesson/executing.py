"""Runs notebooks with papermill, in fresh kernels of this environment: the solutions, and the book's chapters."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat

from autograder.lesson.shared_server import share_server

#: Seconds for one cell, as in `_config.yml`. The slowest cells take a few seconds; the limit ends a cell that hangs.
CELL_TIMEOUT = 3600


class CellFailedError(RuntimeError):
    """A cell of a notebook raised, did not end, or its kernel died. cell: its id; '?' where that is not known."""

    def __init__(self, cell: str, why: str):
        super().__init__(f"cell {cell}: {why}")


def execute(source: Path, output: Path, work: Path, label: str = "", parameters: dict[str, Any] | None = None) -> None:
    """Run the notebook `source` in the folder `work`, and write it with its outputs to `output`, as far as it ran.

    label: what a bar on the terminal says; none is shown without it. CellFailedError names the cell and its error.
    """
    import papermill
    from traitlets.config import Config

    _prepare()
    with tempfile.TemporaryDirectory(prefix="kernel-") as folder, _failures(output):
        # Sockets in a private folder instead of TCP ports: no port is taken, and nobody else can connect. Two kernels
        # that run in one folder at once must not share them. A socket's path has at most 107 bytes.
        private = {"transport": "ipc", "ip": f"{folder}/k"} if len(os.fsencode(folder)) < 100 else {}
        papermill.execute_notebook(
            str(source),
            str(output),
            parameters=parameters,
            kernel_name="python3",
            cwd=str(work),
            progress_bar={"desc": label, "file": sys.stderr} if label else False,
            start_timeout=CELL_TIMEOUT,  # on a busy machine a kernel may take minutes to start
            execution_timeout=CELL_TIMEOUT,
            config=Config({"KernelManager": private}),
        )


@contextlib.contextmanager
def _failures(output: Path) -> Iterator[None]:
    """Inside, an error of a notebook that is written to `output` becomes a CellFailedError."""
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    try:
        yield
    except papermill.PapermillExecutionError as error:
        why = f"{error.ename}: {first_line(error.evalue)}".removesuffix(": ")
        raise CellFailedError(_running(output, error.cell_index), why) from error
    except CellTimeoutError as error:
        raise CellFailedError(_running(output), f"did not end within {CELL_TIMEOUT} s") from error
    except DeadKernelError as error:
        raise CellFailedError(_running(output), "the kernel died") from error


def at_once(
    function: Callable, todo: list[tuple], jobs: int, label: str, show: bool = True, begin: Callable | None = None
) -> Iterator[tuple[int, Any]]:
    """`function(*arguments)` for each of `todo`, in `jobs` processes that share one import of torch.

    (number, result) of each, as they end; they begin in their order. What `function` raises is its result, and so is
    the end of its process, which loses only what had not ended by then. show: with a bar of this `label`. begin: called
    once in each process.
    """
    from tqdm import tqdm

    if not todo:
        return
    _prepare()
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(max(1, jobs), mp_context=context, initializer=begin)
    with share_server(), pool:
        running = {pool.submit(function, *arguments): number for number, arguments in enumerate(todo)}
        done = concurrent.futures.as_completed(running)
        for future in tqdm(done, total=len(todo), desc=label, unit="notebook", disable=not show):
            yield running[future], future.exception() or future.result()


def _prepare() -> None:
    """Make the kernel named python3 this environment's, whatever Jupyter's settings on this machine say."""
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
    os.environ.pop("JUPYTER_PATH", None)
    # Notebooks share the cores: a thread of torch that waits for another one would keep a core busy.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _running(output: Path, index: int | None = None) -> str:
    """The id of the cell at `index`, or of the one that was running when the notebook stopped."""
    try:
        cells = nbformat.read(output, as_version=4).cells
    except Exception:
        return "?"
    # Papermill puts its error markers before the cell that failed.
    cells = [cell for cell in cells if "papermill-error-cell-tag" not in cell.metadata.get("tags", [])]
    if index is not None:
        return cells[index].id
    # For papermill, a cell whose kernel died is "completed"; the ones after it are still "pending".
    started = [cell for cell in cells if cell.metadata.get("papermill", {}).get("status") not in (None, "pending")]
    return started[-1].id if started else "?"


def first_line(text: Any) -> str:
    """The first line of a text that is not empty, without the blanks around it."""
    return next((line.strip() for line in str(text).splitlines() if line.strip()), "")
