"""The half of grading that runs in the jail: a Python with torch loaded, forked for each submission.

Nothing in this half is secret or trusted: a submission can change all of it, and then only changes its own answers.
Whatever it sends reaches the other side as plain data (`wire`).
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import importlib
import io
import os
import pickle
import shutil
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from jail import namespace, wire

from ranks import processes, server

#: The working directory of a submission.
WORK = "/tmp/work"


def main(fd: int, modules: list[str]) -> None:
    """Load everything once, then fork a process for each submission that is asked for over the socket `fd`.

    modules: what is loaded besides what all notebooks use. Nothing of a submission comes to this process: the next one
    would find it in the memory that it inherits.
    """
    requests = socket.socket(fileno=fd)
    namespace.prepare()
    _preload(modules)
    server.make_forks_cheap()
    wire.send(requests, {"ready": True})
    running: set[int] = set()
    while True:
        try:
            header, fds, _, _ = socket.recv_fds(requests, 1, 1)
            request = wire.receive(requests) if header else None
        except (EOFError, ConnectionError):
            request = None
        if request is None:
            for pid in running:
                _end(pid)
            os._exit(0)
        if request["what"] == "start":
            pid = _start(fds[0], request)
            running.add(pid)
            wire.send(requests, {"pid": pid})
        elif request["what"] == "end":
            running.remove(request["pid"])
            _end(request["pid"])
            wire.send(requests, {"ended": True})
        for received in fds:
            os.close(received)


def _preload(modules: list[str]) -> None:
    import matplotlib
    from IPython.core import interactiveshell  # noqa: F401

    matplotlib.use("agg")
    import matplotlib.pyplot
    import torch
    from matplotlib_inline import backend_inline  # noqa: F401

    for name in modules:
        with contextlib.suppress(ImportError):  # the notebook will report it
            importlib.import_module(name)
    server.preload()
    torch.set_num_threads(1)
    streams = sys.stdout, sys.stderr
    _new_shell(lambda *_: None).run_cell("None")  # the first shell of a process imports what later ones use
    sys.stdout, sys.stderr = streams


def _start(fd: int, request: dict) -> int:
    """Fork one submission's process, which talks over `fd`; its number as this process sees it."""
    pid = os.fork()
    if pid:
        return pid
    try:
        _keep_only(fd)
        namespace.die_with_parent()
        namespace.separate()
        first = os.fork()
        if first:
            namespace.die_with_parent()
            os.close(fd)
            os._exit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) & 0xFF)
        namespace.die_with_parent()
        os.setsid()  # here, so that a signal to its group reaches no process outside
        namespace.settle(*(request[name] for name in ("limits", "environment", "kept", "links", "user")))
        _be_init(fd)
    except BaseException:
        with contextlib.suppress(BaseException):
            wire.send(socket.socket(fileno=fd), {"broken": traceback.format_exc()[-2000:]})
    finally:
        os._exit(70)


def _keep_only(fd: int) -> None:
    """Close all that this process has inherited but `fd`: it would share that with the submissions after it."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in (0, 1, 2, fd):
            with contextlib.suppress(OSError):  # the one by which this list was read
                os.close(number)


def _be_init(fd: int) -> None:
    """The first process of a submission: starts the one that runs cells, collects ended processes, ends with it."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        Kernel(socket.socket(fileno=fd)).serve()
        os._exit(0)
    os.close(fd)
    while True:
        pid, _ = os.wait()
        if pid == child:
            os._exit(0)


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        # Its child is the first process of the submission; when that ends, the system ends all others.
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.waitpid(pid, 0)


class Kernel:
    """One submission's Python: runs its cells, and calls its functions when the grade cells ask for it."""

    def __init__(self, connection: socket.socket):
        self.connection, self.owner = connection, os.getpid()
        processes.fork_server()  # before this process writes to memory that it shares with its forks
        self.kept: dict[int, Any] = {}
        for name, content in wire.receive(connection).items():
            path = Path(WORK, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        self.shell = _new_shell(self._output)
        vars(sys.modules["jail.inside"])["current"] = self
        sys.path.insert(0, "")
        wire.send(connection, {"up": True})

    def serve(self) -> None:
        """Answer requests until the other side is gone."""
        while True:
            try:
                request = wire.receive(self.connection)
            except (EOFError, ConnectionError):
                return
            answer = getattr(self, f"do_{request.pop('what')}")
            try:
                reply = answer(**request)
            except BaseException as error:
                reply = {"raised": describe(error, self.shell)}
            if os.getpid() != self.owner:  # a process that the cell has forked must not reply
                os._exit(0)
            self._reply(reply)

    def _reply(self, reply: dict) -> None:
        try:
            wire.send(self.connection, {"reply": reply}, self._keep)
        except (ValueError, TypeError, RecursionError) as error:
            wire.send(self.connection, {"reply": {"raised": describe(error, self.shell)}})

    def _output(self, kind: str, content: dict) -> None:
        with contextlib.suppress(Exception):
            if kind != "stream":  # keep the order: what was printed before comes first
                sys.stdout.flush()
                sys.stderr.flush()
            wire.send(self.connection, {"output": kind, "content": content})

    def _keep(self, value: Any) -> int:
        number = len(self.kept) + 1
        self.kept[number] = value
        return number

    def oracle(self, number: int) -> Any:
        """A function that asks one of the other side (`stage.Oracle`), and waits for what it says."""

        def ask(*args: Any, **kwargs: Any) -> Any:
            if os.getpid() != self.owner:
                raise RuntimeError("only the process that was given this function can call it")
            wire.send(self.connection, {"asks": number, "args": list(args), "kwargs": kwargs}, self._keep)
            told = wire.receive(self.connection)["told"]
            if "error" in told:
                raise getattr(builtins, told["error"], Exception)(told["text"])
            return told["value"]

        return ask

    def do_cell(self, source: str) -> dict:
        """Run a cell as a notebook does; what it raised, if anything."""
        result = self.shell.run_cell(source, store_history=True)
        sys.stdout.flush()
        sys.stderr.flush()
        error = result.error_before_exec or result.error_in_exec
        count = self.shell.execution_count - 1
        raised = None if error is None else describe(error, self.shell)
        return {"count": count, "raised": raised}

    def do_ready(self) -> dict:
        """Can calls be made in this process? Raises if cells have removed what calls need; else as `do_names`."""
        Path("/tmp/ready/there").mkdir(parents=True)
        Path("/tmp/ready/there/file").write_bytes(b"")
        shutil.rmtree("/tmp/ready")
        # Can one more process start? The limits count threads, too, and one starts several times faster.
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
        return self.do_names()

    def do_names(self) -> dict:
        """The names that the notebook has defined so far."""
        return {"names": [name for name in self.shell.user_ns if isinstance(name, str) and name.isidentifier()]}

    def do_call(self, payload: bytes, folder: str, files: dict) -> dict:
        """Call something with arguments; its result, how it changed the arguments, and the files that it changed."""
        wire.write_folder(folder, files)
        function, args, kwargs = _Unpacker(io.BytesIO(payload)).load()
        watch = Watch((args, kwargs))
        try:
            value = function(*args, **kwargs)
            reply: dict[str, Any] = {"value": value, "aliases": watch.aliases_of(value)}
        except BaseException as error:
            reply = {"raised": describe(error, self.shell)}
        changes = {"changed": watch.changes(), "refilled": watch.refilled()}
        return {**reply, **changes, "files": changed_files(folder, files)}

    def do_attribute(self, reference: str | int, name: str) -> dict:
        """An attribute of an object, which `resolve` finds."""
        return {"value": getattr(resolve(reference), name)}

    def do_run(self, payload: bytes, options: dict, folder: str, files: dict) -> dict:
        """`ranks.run` in the jail; its results, ledger and output, or how it failed."""
        import ranks

        wire.write_folder(folder, files)
        worker, args = _Unpacker(io.BytesIO(payload)).load()
        try:
            results = ranks.run(worker, args=args, echo=False, **options)
            ledger = results.ledger
            reply: dict[str, Any] = {"values": list(results), "stdout": list(results.stdout)}
            reply |= {"messages": list(ledger), "spans": list(ledger.spans)}
        except BaseException as error:
            reply = {"raised": describe(error, self.shell)}
        return {**reply, "files": changed_files(folder, files)}


current: Kernel | None = None


def resolve(reference: int | str | tuple[str, int]) -> Any:
    """An object of the submission: by its name in the notebook, or by the number under which it was kept.

    Or a function that asks the oracle of this number.
    """
    import jail.inside

    kernel = jail.inside.current
    if isinstance(reference, tuple):
        return kernel.oracle(reference[1])
    if isinstance(reference, str):
        if reference not in kernel.shell.user_ns:
            raise NameError(f"name {reference!r} is not defined")
        return kernel.shell.user_ns[reference]
    return kernel.kept[reference]


class _Unpacker(pickle.Unpickler):
    """Reads what `handles.pack` has written: in the place of each handle stands the submission's own object."""

    def persistent_load(self, reference: int | str | tuple[str, int]) -> Any:
        return resolve(reference)


def describe(error: BaseException, shell: Any) -> dict:
    """An exception as plain data: its name, its nearest built-in base class (`kin`), its text, its frames in cells."""
    try:
        text = str(error)
    except BaseException as other:
        text = f"(its text cannot be read: {type(other).__name__})"
    kin = next(kind.__name__ for kind in type(error).__mro__ if vars(builtins).get(kind.__name__) is kind)
    found = {"name": type(error).__name__[:200], "kin": kin, "text": text[:20_000], "frames": _frames(error, shell)}
    more = {}
    for name in ("rank", "type_name", "reason", "traceback", "where", "waits", "parted", "evidence", "headline"):
        with contextlib.suppress(Exception):
            more[name] = copy.deepcopy(vars(error)[name])
    if type(error).__module__ == "ranks.errors":
        found["ranks"] = more
    return found


def _frames(error: BaseException, shell: Any) -> list[str]:
    """The last frames of an exception that are in the notebook's own cells."""
    names = getattr(shell.compile, "_filename_map", {})
    found = []
    with contextlib.suppress(Exception):
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename in names:
                place = f"Cell In[{names[frame.filename]}], line {frame.lineno}, in {frame.name}"
                found.append(f"{place}\n----> {frame.lineno} {frame.line}")
    return found[-3:]


class Watch:
    """Watches the mutable arguments of a call: which it changed in place, and which share memory with its result."""

    def __init__(self, arguments: Any):
        self.leaves, self.holders = list(wire.leaves(arguments)), list(wire.holders(arguments))
        self.before = [_state(leaf) for leaf in self.leaves]
        self.held = [_entries(holder) for holder in self.holders]

    def changes(self) -> list:
        """[number of the array, its new content] for each array that has changed in place."""
        found = []
        for number, (leaf, before) in enumerate(zip(self.leaves, self.before, strict=True)):
            if _state(leaf) != before:
                found.append([number, leaf])
        return found

    def refilled(self) -> list:
        """[number of the list or dict, [key, kind, what] for each entry] where the entries are no longer the same.

        kind: "array" or "holder", then `what` is its number among the arguments; or "value", then `what` is the entry.
        """
        known = {id(leaf): ["array", number] for number, leaf in enumerate(self.leaves)}
        known |= {id(holder): ["holder", number] for number, holder in enumerate(self.holders)}
        found = []
        for number, (holder, before) in enumerate(zip(self.holders, self.held, strict=True)):
            after = _entries(holder)
            same = len(after) == len(before) and all(
                a is b and c is d for (a, c), (b, d) in zip(after, before, strict=True)
            )
            if not same:
                found.append([number, [[key, *known.get(id(entry), ["value", entry])] for key, entry in after]])
        return found

    def aliases_of(self, value: Any) -> list:
        """Returned arrays that share memory with arguments: [which array, which argument, offset, shape, strides].

        The offset and the strides are in bytes for numpy's arrays and in elements for tensors; the offset is None if
        the argument itself was returned.
        """
        found = []
        for which, array in enumerate(wire.leaves(value)):
            place = self._place_of(array)
            if place is not None:
                found.append([which, *place])
        return found

    def _place_of(self, value: Any) -> list | None:
        import numpy as np
        import torch

        for number, leaf in enumerate(self.leaves):
            if value is leaf:
                return [number, None, None, None]
            if isinstance(value, np.ndarray) and isinstance(leaf, np.ndarray) and np.shares_memory(value, leaf):
                offset = value.__array_interface__["data"][0] - leaf.__array_interface__["data"][0]
                return [number, offset, list(value.shape), list(value.strides)]
            tensors = isinstance(value, torch.Tensor) and isinstance(leaf, torch.Tensor)
            if tensors and value.numel() and leaf.numel() and _storage(value) == _storage(leaf):
                offset = value.storage_offset() - leaf.storage_offset()
                return [number, offset, list(value.shape), list(value.stride())]
        return None


def _storage(tensor: Any) -> int:
    return tensor.untyped_storage().data_ptr()


def _entries(holder: list | dict) -> list[tuple]:
    """The entries of a list, with None as their key, or of a dict."""
    return list(holder.items()) if isinstance(holder, dict) else [(None, entry) for entry in holder]


def _state(leaf: Any) -> tuple:
    import numpy as np
    import torch

    if isinstance(leaf, np.ndarray):
        return leaf.dtype.str, leaf.shape, leaf.tobytes()
    plain = leaf.detach().as_subclass(torch.Tensor)
    raw = wire.bytes_of(plain.contiguous()) if plain.numel() else b""
    return str(leaf.dtype), tuple(leaf.shape), leaf.requires_grad, raw


def changed_files(folder: str, before: dict) -> dict | None:
    """The folder's files if they have changed, else None."""
    after = wire.read_folder(folder)
    return None if after == before else after


def _new_shell(output: Any) -> Any:
    """An IPython shell that sends what a notebook would show."""
    from IPython.core.displayhook import DisplayHook
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    class Publisher(DisplayPublisher):
        def publish(
            self,
            data: Any,
            metadata: Any = None,
            source: Any = None,
            *,
            transient: Any = None,
            update: Any = False,
            **kwargs: Any,
        ) -> None:
            kind = "update_display_data" if update else "display_data"
            output(kind, {"data": _texts(data), "transient": {"display_id": (transient or {}).get("display_id")}})

        def clear_output(self, wait: bool = False) -> None:
            output("clear_output", {"wait": bool(wait)})

    class Hook(DisplayHook):
        def write_output_prompt(self) -> None:
            pass

        def write_format_data(self, format_dict: Any, md_dict: Any = None) -> None:
            content = {"data": _texts(format_dict), "execution_count": self.prompt_count}
            output("execute_result", content)

        def finish_displayhook(self) -> None:
            self._is_active = False

    class Shell(InteractiveShell):
        def _showtraceback(self, etype: Any, evalue: Any, stb: Any) -> None:
            lines = [str(part) for part in stb][-50:]
            output("error", {"ename": etype.__name__, "evalue": str(evalue), "traceback": lines})

        def enable_gui(self, gui: Any = None) -> None:
            pass

    Shell.displayhook_class = Hook  # type: ignore[assignment]  # declared as a trait; a class does as well
    Shell.display_pub_class = Publisher  # type: ignore[assignment]  # as above
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    InteractiveShell.clear_instance()
    shell = Shell.instance(colors="nocolor", config=Config({"HistoryManager": {"enabled": False}}))
    # Also while no cell runs: `ranks` asks it for the numbers of cells.
    vars(builtins)["get_ipython"] = shell.get_ipython
    for name in ("stdout", "stderr"):
        setattr(sys, name, Stream(name, output))
    shell.user_ns["__name__"] = "__main__"
    with contextlib.suppress(Exception):
        shell.enable_matplotlib("inline")
    return shell


def _texts(data: dict) -> dict:
    return {str(kind): value for kind, value in data.items() if isinstance(value, str)} | {
        str(kind): _base64(value) for kind, value in data.items() if isinstance(value, bytes)
    }


def _base64(data: bytes) -> str:
    import base64

    return base64.b64encode(data).decode("ascii")


class Stream(io.TextIOBase):
    """A stream for `print`: its text is sent on in pieces."""

    encoding = "utf-8"

    def __init__(self, name: str, output: Any):
        self.name, self.output = name, output
        self.held: list[str] = []
        self.size = 0
        self.owner = os.getpid()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def write(self, text: str) -> int:
        if os.getpid() == self.owner:  # not in a forked child, which must not send
            self.held.append(str(text))
            self.size += len(text)
            if self.size > 8192:
                self.flush()
        return len(text)

    def flush(self) -> None:
        if self.held and os.getpid() == self.owner:
            text, self.held, self.size = "".join(self.held), [], 0
            self.output("stream", {"name": self.name, "text": text})
