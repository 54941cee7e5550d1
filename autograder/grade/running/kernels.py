"""What runs a cell: a kernel, its replies, and the outputs that it collects.

`Kernel` is what `run_cells` needs of one, `Kernels` what makes them. This module makes `LocalKernel`s, Jupyter's own,
with the rights of the person who grades; another one makes kernels without rights (`grade.isolation`).
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import os
import queue
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

import nbformat
from jupyter_client import BlockingKernelClient, KernelManager
from nbformat.v4 import new_output

from autograder.checks.check import SEED, fresh_seed
from autograder.checks.expect import CheckFailed, Failure
from autograder.grade import limits
from autograder.grade.limits import well_formed
from autograder.grade.running import clock
from autograder.lesson import notebook

ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


@dataclass
class Reply:
    """What happened to one cell.

    status: "ok", "error", "timeout" (stopped after `timeout` seconds), "died" (the kernel ended), or
    "unstarted" (the kernel had ended before the cell began). error: name and text of the exception that it raised. why:
    what ended the kernel, if known. limit: the seconds after which it was stopped. raised: the exception that a grade
    cell raised outside the jail. seed: the seed of its checks' inputs. ran_again: the seconds in which cells ran again
    in another process, because the test asked for one.
    """

    status: str
    outputs: list[nbformat.NotebookNode] = field(default_factory=list)
    error: tuple[str, str] = ("", "")
    traceback: list[str] = field(default_factory=list)
    execution_count: int | None = None
    why: str = ""
    limit: float = 0.0
    raised: Exception | None = None
    seed: int | None = None
    ran_again: float = 0.0


class Kernel(Protocol):
    """Runs the cells of one submission, one after another."""

    def start(self) -> None:
        """Start a fresh process, in which nothing has run."""

    def stop(self) -> None:
        """End it and every process that it started; does nothing if it is not running."""

    def run(self, source: str, timeout: float) -> Reply:
        """Run one of the submission's cells. After "timeout", "died" or "unstarted", stop it."""

    def run_test(self, source: str, timeout: float) -> Reply:
        """Run a grade cell."""


class NotStartedError(RuntimeError):
    """No kernel could be started, which need not be the submission's fault."""


class Kernels(Protocol):
    """A module that makes kernels."""

    def prepare(self) -> None:
        """Start in this process what the first kernel would have to wait for. NotStartedError if that does not work."""

    def kernels_for(
        self, lesson: nbformat.NotebookNode, files: dict[str, bytes]
    ) -> contextlib.AbstractContextManager[Callable[[], Kernel]]:
        """Makes kernels for a submission to this lesson. files: the others in the notebook's folder, by name."""

    def leave_nothing(self) -> None:
        """End what `prepare` and kernels have started, and remove their files, in the middle of their work."""


def module(name: str) -> Kernels:
    """The module of this name that makes kernels."""
    return cast(Kernels, importlib.import_module(name))


#: The name of this one, which makes local kernels. Any other may make kernels that end their process.
LOCAL = __name__


def prepare() -> None:
    """A local kernel waits for nothing."""


def leave_nothing() -> None:
    """Local kernels end with the process that started them."""


@contextlib.contextmanager
def kernels_for(lesson: nbformat.NotebookNode, files: dict[str, bytes]) -> Iterator[Callable[[], Kernel]]:
    """Makes local kernels, in a folder with these files."""
    with tempfile.TemporaryDirectory(prefix="submission-") as folder:
        for name, content in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        yield lambda: LocalKernel(folder)


class LocalKernel:
    """A Python kernel of this environment on this machine, with the rights of the person who grades."""

    def __init__(self, folder: str):
        self.folder = folder
        self.manager: KernelManager | None = None
        self.client: BlockingKernelClient | None = None
        self.sockets = ""
        self.seed: int | None = None

    def start(self) -> None:
        """Start a fresh kernel in `folder`."""
        self.sockets, self.seed = tempfile.mkdtemp(prefix="kernel-"), fresh_seed()
        self.manager = KernelManager(
            kernel_name="python3", connection_file=os.path.join(self.sockets, "connection.json")
        )
        if os.name == "posix":  # sockets in a private folder instead of ports
            self.manager.transport, self.manager.ip = "ipc", os.path.join(self.sockets, "s")
        self.manager.start_kernel(
            cwd=self.folder,
            env={**os.environ, "NBGRADER_EXECUTION": "autograde", SEED: str(self.seed)},
            extra_arguments=["--HistoryManager.enabled=False"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=600)

    def stop(self) -> None:
        """End the kernel and every process it started; does nothing if there is none."""
        if self.manager is None:
            return
        if self.client is not None:
            self.client.stop_channels()
        # The signal goes to the kernel's whole process group, even if the kernel itself is dead.
        self.manager.shutdown_kernel(now=True)
        shutil.rmtree(self.sockets, ignore_errors=True)
        self.manager = self.client = None

    def run(self, source: str, timeout: float) -> Reply:
        """Run one cell. After "timeout", "died" or "unstarted" the kernel cannot be used any more: stop it."""
        assert self.manager is not None and self.client is not None
        request = self.client.execute(source, allow_stdin=False, stop_on_error=False)
        deadline = clock.now() + timeout
        reply, collected, started, idle = Reply("unstarted"), Outputs(), False, False
        answer = None
        while not (idle and answer):
            if clock.now() > deadline:
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
            name, text = (ANSI.sub("", well_formed(str(answer.get(key, "")))) for key in ("ename", "evalue"))
            reply.error = name, text
            reply.traceback = [well_formed(str(part)) for part in answer.get("traceback", [])]
        return reply

    def run_test(self, source: str, timeout: float) -> Reply:
        """Run a grade cell, in the same kernel."""
        reply = self.run(source, timeout)
        reply.seed = self.seed
        if reply.error[0] == CheckFailed.__name__:
            reply.raised = self._last_failure(timeout)
        return reply

    def _last_failure(self, timeout: float) -> CheckFailed | None:
        """The failure of a check that the kernel has just shown, made anew; None if it cannot tell."""
        assert self.client is not None
        kept = "__import__('dataclasses').asdict(__import__('sys').last_value.failure)"
        asked = {"failure": f"__import__('json').dumps({kept})"}
        self.client.execute("", silent=True, user_expressions=asked)
        with contextlib.suppress(Exception):  # the submission can have changed everything there
            content = self.client.get_shell_msg(timeout=timeout)["content"]
            text = content["user_expressions"]["failure"]["data"]["text/plain"]
            failed = CheckFailed("")
            failed.failure = Failure.of_data(json.loads(ast.literal_eval(text)))
            return failed
        return None

    def _next(self, channel: str) -> dict | None:
        try:
            return getattr(self.client, f"get_{channel}_msg")(timeout=0.2)
        except queue.Empty:
            return None


class OwnKernel:
    """Runs cells in this very process, without a limit: for answers that we know, where a jail takes too long.

    What cells show is not kept.
    """

    def __init__(self) -> None:
        self.space: dict[str, Any] = {}
        self.folder: tempfile.TemporaryDirectory[str] | None = None
        self.before = ""

    def start(self) -> None:
        """A fresh namespace, and an empty folder to work in: a notebook may write files there."""
        self.space, self.before = notebook.fresh_namespace(), os.getcwd()
        self.folder = tempfile.TemporaryDirectory(prefix="lesson-")
        os.chdir(self.folder.name)

    def stop(self) -> None:
        """Leave the folder, and remove it; does nothing if it has not started."""
        if self.folder is not None:
            os.chdir(self.before)
            self.folder.cleanup()
            self.folder = None

    def run(self, source: str, timeout: float) -> Reply:
        """Run one cell, to its end."""
        error = notebook.execute(str(abs(hash(source))), source, self.space)
        if error is None:
            return Reply("ok")
        return Reply("error", error=(type(error).__name__, str(error)), raised=error, seed=getattr(error, "seed", None))

    run_test = run


class Outputs:
    """Collects a cell's output messages: streams joined, display updates applied, everything bounded.

    most: characters of all of them. `size` counts what came, errors and what was cleared or replaced included.
    """

    def __init__(self, most: int = limits.CELL_OUTPUT) -> None:
        self.most = min(most, limits.CELL_OUTPUT)
        self.outputs: list[nbformat.NotebookNode] = []
        self.displays: dict[str, nbformat.NotebookNode] = {}
        self.size, self.late_errors, self.clear_next = 0, 0, False

    def add_untrusted(self, kind: str, content: dict) -> None:
        """Add one message from a jail, whose content can be anything."""
        plain = _plain(content)
        if kind == "execute_result" and "execution_count" not in plain:
            return
        with contextlib.suppress(Exception):
            self.add({"msg_type": kind, "content": plain})

    def add(self, message: dict) -> None:
        """Add one message; anything that is not a valid output is ignored."""
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
        if self.size > self.most:
            if kind == "error" and self.late_errors < limits.LATE_ERRORS:
                self.late_errors += 1
                texts = {key: well_formed(str(content.get(key, ""))[:1000]) for key in ("ename", "evalue")}
                self.outputs.append(new_output("error", **texts, traceback=[]))
            return
        self.size += len(str(content)) + 100  # an empty output takes room in the notebook as well
        if self.size > self.most:
            self.outputs.append(new_output("stream", text="\n… the rest of the output was cut.\n"))
            self.add(message)
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
                self._append(new_output("stream", name=name, text=text))
            return
        if kind == "error":
            texts = {key: well_formed(str(content.get(key, ""))) for key in ("ename", "evalue")}
            lines = [well_formed(str(line)) for line in content.get("traceback", [])]
            self._append(new_output("error", **texts, traceback=lines))
            return
        number = {"execution_count": content["execution_count"]} if kind == "execute_result" else {}
        self._append(new_output(kind, data=_valid_data(content["data"]), **number))
        if shown:
            self.displays[shown] = self.outputs[-1]

    def finished(self) -> list[nbformat.NotebookNode]:
        """The outputs that were collected."""
        for output in self.outputs:
            if output.output_type == "stream":  # a progress bar leaves its last state
                output.text = limits.last_states(output.text)
        return self.outputs

    def _append(self, output: nbformat.NotebookNode) -> None:
        self.outputs.append(output)
        self.size += limits.ONE_OUTPUT

    def _clear(self) -> None:
        self.outputs, self.displays, self.clear_next = [], {}, False


def _plain(content: dict) -> dict:
    """What an output can hold of a message from a jail. No text is made of anything else: that could take gigabytes."""
    found = {key: content[key] for key in ("name", "text", "ename", "evalue") if isinstance(content.get(key), str)}
    data, lines, shown = (content.get(key) for key in ("data", "traceback", "transient"))
    if isinstance(data, dict):
        found["data"] = {kind: text for kind, text in data.items() if isinstance(kind, str) and isinstance(text, str)}
    if isinstance(lines, list):
        found["traceback"] = [line for line in lines if isinstance(line, str)]
    if isinstance(shown, dict) and isinstance(shown.get("display_id"), str):
        found["transient"] = {"display_id": shown["display_id"]}
    number = content.get("execution_count")
    if type(number) is int and 0 <= number < 10**9:
        found["execution_count"] = number
    return {**found, "wait": content.get("wait") is True}


def _valid_data(data: dict) -> nbformat.NotebookNode:
    """A display's texts by type. Anything else is removed: a notebook file might not be able to hold it."""
    texts = {well_formed(str(kind))[:200]: well_formed(value) for kind, value in data.items() if isinstance(value, str)}
    return nbformat.from_dict({kind: text for kind, text in texts.items() if not kind.endswith("json")})
