"""Runs a notebook's cells for grading, and survives what they do: errors, endless loops, a dead kernel.

Two things are kept apart. `LocalKernel` is how a kernel is started, fed and stopped. `run_cells` is the policy:
which cells run, what happens when one of them kills the kernel, what is written down about each test.
"""

from __future__ import annotations

import base64
import contextlib
import fnmatch
import io
import os
import queue
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import nbformat
from jupyter_client import BlockingKernelClient, KernelManager
from nbformat.v4 import new_output
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Bool, Integer, List, Unicode

from autograder.grading.restore import well_formed
from autograder.lessons import skippable

#: A cell's outputs are cut behind so many characters: an endless loop may print all the time.
MAX_OUTPUT = 2_000_000

ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


@dataclass
class Reply:
    """What became of one cell.

    status: "ok", "error", "timeout" (stopped after `timeout` seconds), "died" (the kernel ended), or
    "unstarted" (the kernel had ended before the cell began). error: name and text of what it raised. why: what
    ended it, if that is known. raised: what a grade cell raised outside the jail.
    """

    status: str
    outputs: list[nbformat.NotebookNode] = field(default_factory=list)
    error: tuple[str, str] = ("", "")
    traceback: list[str] = field(default_factory=list)
    execution_count: int | None = None
    why: str = ""
    raised: Exception | None = None


class LocalKernel:
    """A Python kernel of this environment on this machine, with the rights of whoever grades."""

    def __init__(self, folder: str):
        self.folder = folder
        self.manager: KernelManager | None = None
        self.client: BlockingKernelClient | None = None
        self.sockets = ""

    def start(self) -> None:
        """Start a fresh kernel in `folder`."""
        self.sockets = tempfile.mkdtemp(prefix="kernel-")
        self.manager = KernelManager(
            kernel_name="python3", connection_file=os.path.join(self.sockets, "connection.json")
        )
        if os.name == "posix":  # sockets in a private folder instead of ports
            self.manager.transport, self.manager.ip = "ipc", os.path.join(self.sockets, "s")
        self.manager.start_kernel(
            cwd=self.folder,
            env={**os.environ, "NBGRADER_EXECUTION": "autograde"},
            extra_arguments=["--HistoryManager.enabled=False"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def stop(self) -> None:
        """End the kernel and every process it started; without effect when there is none."""
        if self.manager is None:
            return
        if self.client is not None:
            self.client.stop_channels()
        # Signals go to the kernel's whole process group, also when the kernel itself is dead.
        self.manager.shutdown_kernel(now=True)
        shutil.rmtree(self.sockets, ignore_errors=True)
        self.manager = self.client = None

    def run(self, source: str, timeout: float) -> Reply:
        """Run one cell. After "timeout", "died" or "unstarted" the kernel is of no use: stop it."""
        assert self.manager is not None and self.client is not None
        request = self.client.execute(source, allow_stdin=False, stop_on_error=False)
        deadline = time.monotonic() + timeout
        reply, collected, started, idle = Reply("unstarted"), Outputs(), False, False
        answer = None
        while not (idle and answer):
            if time.monotonic() > deadline:
                reply.status = "timeout"
                break
            message = self._next("iopub" if not idle else "shell")
            if message is None:
                if not self.manager.is_alive():
                    reply.status = "died" if started else "unstarted"
                    break
            elif message["parent_header"].get("msg_id") != request:
                continue
            elif message["msg_type"] == "execute_reply":
                answer = message["content"]
            elif message["msg_type"] == "status":
                idle = message["content"]["execution_state"] == "idle"
            elif message["msg_type"] == "execute_input":
                started = True
                reply.execution_count = message["content"]["execution_count"]
            else:
                collected.add(message)
        reply.outputs = collected.finished()
        if answer:
            reply.status = "ok" if answer["status"] == "ok" else "error"
            reply.error = tuple(ANSI.sub("", well_formed(str(answer.get(key, "")))) for key in ("ename", "evalue"))
            reply.traceback = [well_formed(str(part)) for part in answer.get("traceback", [])]
        return reply

    def run_test(self, source: str, timeout: float) -> Reply:
        """Run a grade cell, in the same kernel."""
        return self.run(source, timeout)

    def _next(self, channel: str) -> dict | None:
        try:
            return getattr(self.client, f"get_{channel}_msg")(timeout=0.2)
        except queue.Empty:
            return None


class Outputs:
    """Collects a cell's output messages: streams joined, display updates applied, everything bounded."""

    def __init__(self):
        self.outputs, self.displays, self.size, self.clear_next = [], {}, 0, False

    def take(self, kind: str, content: dict) -> None:
        """Take in one message of a jail, which may say anything."""
        if kind == "execute_result" and type(content.get("execution_count")) is not int:
            return
        with contextlib.suppress(Exception):
            self.add({"msg_type": kind, "content": content})

    def add(self, message: dict) -> None:
        """Take one message in; what is no output, or no valid one, is left out."""
        kind, content = message["msg_type"], message["content"]
        if kind == "clear_output":
            self.clear_next = True
            if not content.get("wait"):
                self._clear()
            return
        if kind not in ("stream", "display_data", "execute_result", "error", "update_display_data"):
            return
        if self.clear_next:
            self._clear()
        self.size += len(str(content))
        if self.size > MAX_OUTPUT and kind != "error":
            if self.size - len(str(content)) <= MAX_OUTPUT:
                self.outputs.append(new_output("stream", text="\n… the rest of the output was cut.\n"))
            return
        shown = content.get("transient", {}).get("display_id")
        if kind == "update_display_data":
            if shown in self.displays:
                self.displays[shown].data = _valid_data(content["data"])
            return
        last = self.outputs[-1] if self.outputs else None
        if kind == "stream":
            text, name = well_formed(str(content["text"])), "stderr" if content["name"] == "stderr" else "stdout"
            if last and last.output_type == "stream" and last.name == name:
                last.text += text
            else:
                self.outputs.append(new_output("stream", name=name, text=text))
            return
        if kind == "error":
            texts = {key: well_formed(str(content.get(key, ""))) for key in ("ename", "evalue")}
            lines = [well_formed(str(line)) for line in content.get("traceback", [])]
            self.outputs.append(new_output("error", **texts, traceback=lines))
            return
        number = {"execution_count": content["execution_count"]} if kind == "execute_result" else {}
        self.outputs.append(new_output(kind, data=_valid_data(content["data"]), **number))
        if shown:
            self.displays[shown] = self.outputs[-1]

    def finished(self) -> list[nbformat.NotebookNode]:
        for output in self.outputs:
            if output.output_type == "stream":  # a progress bar leaves its last state
                output.text = re.sub(r"[^\n]*\r(?!\n)", "", output.text)
        return self.outputs

    def _clear(self) -> None:
        self.outputs, self.displays, self.clear_next = [], {}, False


def _valid_data(data: dict) -> nbformat.NotebookNode:
    """A display's texts by type; a cell may send anything, and a notebook file may not hold it."""
    texts = {kind: well_formed(value) for kind, value in data.items() if isinstance(value, str)}
    return nbformat.from_dict({kind: text for kind, text in texts.items() if not kind.endswith("json")})


@dataclass
class Limits:
    """Seconds: for a cell, for a test cell, for the whole notebook."""

    cell: float = 60
    test: float = 120
    notebook: float = 900


#: The status of a cell that need not run.
NOT_RUN = "not run"


def run_cells(
    cells: list[nbformat.NotebookNode],
    new_kernel: Callable[[], LocalKernel],
    limits: Limits,
    idle: Collection[str] = (),
) -> None:
    """Run the code cells in order and write into each its outputs and `metadata.autograder.status`.

    idle: the ids of cells that need not run (`skippable`); their status is NOT_RUN.
    A cell that ends the kernel, or does not end, is left out from then on: a fresh kernel re-runs the cells
    before it, tests excepted, and goes on behind it. `status` is that of `Reply`, or "out of time" when the
    whole notebook took too long. A test also gets `error` (name, text) and `where` (its own frames).
    """
    run = _Run(new_kernel, limits)
    try:
        for cell in cells:
            if cell.cell_type != "code":
                continue
            if cell.id in idle:
                cell.metadata.setdefault("autograder", nbformat.NotebookNode()).status = NOT_RUN
                continue
            reply = run.step(cell)
            cell.outputs, cell.execution_count = reply.outputs, reply.execution_count
            ours = cell.metadata.setdefault("autograder", nbformat.NotebookNode())
            ours.update(status=reply.status, error=list(reply.error))
            if reply.why:
                ours.why = reply.why
            if reply.status == "error":
                ours.where = run.own_frames(reply)
                if drawn := picture_of(reply.raised):
                    ours.picture = drawn
    finally:
        run.kernel.stop()


#: A picture of more messages shows nothing.
MAX_MESSAGES = 150


def picture_of(error: Exception | None) -> dict[str, str]:
    """What the ranks sent each other when a check failed: `png` (base64) and `alt`; {} if there is nothing to see."""
    ledger = getattr(error, "ledger", None)
    if not ledger or len(ledger) > MAX_MESSAGES or ledger.world_size < 2:
        return {}
    from ranks import timeline

    sends = ledger.sends()
    try:
        if sends:
            figure = timeline.draw_rounds(ledger, ledger.world_size, "What your ranks sent")
        else:
            figure = timeline.draw(ledger, ledger.world_size, "What your ranks did")
        png = io.BytesIO()
        figure.savefig(png, format="png", dpi=120)
    except (ValueError, RuntimeError):  # a ledger that no honest run has
        return {}
    return {"png": base64.b64encode(png.getvalue()).decode("ascii"), "alt": figure.alt}


class _Run:
    """One pass over a notebook: the live kernel, and which cells it has seen."""

    def __init__(self, new_kernel: Callable[[], LocalKernel], limits: Limits):
        self.new_kernel, self.limits = new_kernel, limits
        self.deadline = time.monotonic() + limits.notebook
        self.kernel, self.fresh = new_kernel(), True
        self.seen: list[nbformat.NotebookNode] = []  # what a fresh kernel has to re-run
        self.counts: set[int] = set()  # execution counts of the student's cells in the live kernel
        self.last: nbformat.NotebookNode | None = None

    def step(self, cell: nbformat.NotebookNode) -> Reply:
        """Run one cell, in a kernel that has seen the cells before it."""
        retried = False
        while time.monotonic() < self.deadline:
            if self.fresh and not self._replay():
                continue
            if retried and self.last is not None and self.kernel.run("", self.limits.cell).status == "unstarted":
                # The cell before left something behind that ends the kernel a moment later.
                self._drop(self.last)
                continue
            reply = self._run(cell)
            if reply.status == "unstarted" and not retried:
                # Which cell ended the kernel, this one at once or the one before it? Another run will show.
                retried = True
                self._end()
                continue
            if reply.status in ("ok", "error") and not is_test(cell):
                self.seen.append(cell)
            elif reply.status not in ("ok", "error"):
                reply.status = "died" if reply.status == "unstarted" else reply.status
                self._end()
            return reply
        return Reply("out of time")

    def own_frames(self, reply: Reply) -> list[str]:
        """The parts of a traceback that show the student's own cells, without color."""
        frames = [ANSI.sub("", part) for part in reply.traceback]
        numbers = [(re.match(r"\s*Cell In\s?\[(\d+)\]", frame), frame) for frame in frames]
        return [frame for match, frame in numbers if match and int(match[1]) in self.counts][-3:]

    def _replay(self) -> bool:
        """Start a kernel and re-run what came before; False when that ended the kernel again."""
        self.kernel.start()
        self.fresh, self.last, self.counts = False, None, set()
        for cell in list(self.seen):
            if self._run(cell).status not in ("ok", "error"):
                self._drop(cell)
                return False
        return True

    def _run(self, cell: nbformat.NotebookNode) -> Reply:
        limit = self.limits.test if is_test(cell) else self.limits.cell
        left = max(0.0, self.deadline - time.monotonic())
        run = self.kernel.run_test if is_test(cell) else self.kernel.run
        reply = run(cell.source, min(limit, left))
        if reply.status == "timeout" and left < limit:
            reply.status = "out of time"
        if reply.status != "unstarted":
            self.last = cell
        if reply.execution_count and not is_test(cell):
            self.counts.add(reply.execution_count)
        return reply

    def _drop(self, cell: nbformat.NotebookNode) -> None:
        self.seen = [other for other in self.seen if other is not cell]
        self._end()

    def _end(self) -> None:
        self.kernel.stop()
        self.kernel, self.fresh = self.new_kernel(), True


def is_test(cell: nbformat.NotebookNode) -> bool:
    """Is this a cell that gives points?"""
    return bool(cell.metadata.get("nbgrader", {}).get("grade"))


class RunCells(NbGraderPreprocessor):
    """Takes the place of nbgrader's Execute: a submission's cells run in a jail, its grade cells outside."""

    timeout = Integer(60, help="Seconds for one cell.").tag(config=True)
    test_timeout = Integer(120, help="Seconds for one test cell.").tag(config=True)
    notebook_timeout = Integer(900, help="Seconds for the whole notebook.").tag(config=True)
    jail = Bool(True, help="Run submissions in a jail. Off, they run with your own rights.").tag(config=True)
    demonstrations = Bool(
        False, help="Run the lesson's own cells, too, that are unchanged and on which no answer and no test depends."
    ).tag(config=True)
    data_files = List(Unicode(), help="Patterns of files that are taken from a submission.").tag(config=True)

    #: (student, lesson) → the notebook as a worker has run it already, as text.
    done: ClassVar[dict[tuple[str, str], str]] = {}

    @property
    def limits(self) -> Limits:
        """The three times together."""
        return Limits(self.timeout, self.test_timeout, self.notebook_timeout)

    def preprocess(self, nb: nbformat.NotebookNode, resources: dict) -> tuple[nbformat.NotebookNode, dict]:
        """Run the restored notebook; for one that could not be read no kernel is started."""
        if nb.metadata.autograder.problem:
            return nb, resources
        where = resources["nbgrader"]
        course = CourseDirectory(config=self.config)
        handed_in = Path(course.format_path(course.submitted_directory, where["student"], where["assignment"]))
        files, left_out = submitted_files(handed_in, self.data_files)
        executed = self.done.get((where["student"], where["assignment"]))
        if executed is None or not _adopt(nb, executed):
            source = Path(course.format_path(course.source_directory, ".", where["assignment"]))
            lesson = lesson_notebook(source / f"{where['notebook']}.ipynb")
            run_submission(nb.cells, lesson, {**files, **files_beside(source)}, self)
        nb.metadata.autograder.left_out = left_out
        return nb, resources


def run_submission(cells: list[nbformat.NotebookNode], lesson: nbformat.NotebookNode, files: dict, how: Any) -> None:
    """Run the cells of a restored submission, as `run_cells`, in kernels as `kernels` starts them.

    how: what says `limits`, `jail` and `demonstrations`, a RunCells or a worker's task.
    """
    idle = () if how.demonstrations else skippable.idle(cells, lesson)
    with kernels(lesson, files, how.jail) as new_kernel:
        run_cells(cells, new_kernel, how.limits, idle)


def _adopt(nb: nbformat.NotebookNode, executed: str) -> bool:
    """Take over outputs and outcomes of a notebook that a worker has run; False if it has run other cells."""
    others = nbformat.reads(executed, as_version=4).cells
    if [(cell.id, cell.source) for cell in others] != [(cell.id, cell.source) for cell in nb.cells]:
        return False
    for cell, other in zip(nb.cells, others, strict=True):
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = other.outputs, other.execution_count
            cell.metadata["autograder"] = other.metadata.get("autograder", {})
    return True


def lesson_notebook(source: Path) -> nbformat.NotebookNode:
    """The instructor's notebook of a lesson; ValueError where there is none."""
    if not source.is_file():
        raise ValueError(f"{source} is needed for grading: the grade cells build on its setup cells")
    return nbformat.read(source, as_version=4)


@contextlib.contextmanager
def kernels(lesson: nbformat.NotebookNode, files: dict[str, bytes], jail: bool) -> Iterator[Callable]:
    """What starts kernels for a submission to this lesson, in this process's jail or, without it, as any program.

    files: what lies beside the notebook, by name.
    """
    from autograder.grading.jail import kernel, outside

    if jail:
        yield lambda: kernel.JailedKernel(outside.shared(), lesson, files)
        return
    with tempfile.TemporaryDirectory(prefix="submission-") as folder:
        for name, content in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        yield lambda: LocalKernel(folder)


def files_beside(folder: Path) -> dict[str, bytes]:
    """What lies beside a lesson's notebook, programs included: each file's bytes, by its name there."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        hidden = any(part.startswith(".") or part == "__pycache__" for part in name.parts)
        if path.is_file() and not hidden and path.suffix != ".ipynb":
            found[str(name)] = path.read_bytes()
    return found


#: A declared data file that is larger is not taken; nor are more than so many.
MAX_DATA_FILE, MAX_DATA_FILES = 20 * 2**20, 50


def submitted_files(folder: Path, patterns: list[str]) -> tuple[dict[str, bytes], list[str]]:
    """The declared data files of a submission, by name; and for each other thing in its folder why it was left out."""
    taken, left_out = {}, []
    for path in sorted(folder.rglob("*"))[:1000] if folder.is_dir() and not folder.is_symlink() else []:
        name = str(path.relative_to(folder))
        if name == f"{folder.name}.ipynb" or any(part.startswith(".") for part in Path(name).parts):
            continue
        if path.is_symlink() or any((folder / parent).is_symlink() for parent in Path(name).parents):
            left_out.append(f"{name}: a link")
        elif path.is_dir():
            continue
        elif not any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
            left_out.append(f"{name}: not asked for")
        elif not path.is_file() or path.stat().st_size > MAX_DATA_FILE or len(taken) >= MAX_DATA_FILES:
            left_out.append(f"{name}: too large, or no plain file")
        elif path.suffix in (".py", ".pth", ".so", ".pyc", ".ipynb"):
            left_out.append(f"{name}: a program, no data")
        else:
            taken[name] = path.read_bytes()
    return taken, left_out
