"""What `import ranks` does, and what `ranks` uses of a system: as far as can be told, on a system that is not Linux."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ranks import processes

#: Writes down what Python's audit hooks say that a program does; "import ranks" is that program.
WATCHED_IMPORT = """
import sys, threading

STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "os.exec",
          "_winapi.CreateProcess", "socket.bind", "socket.connect", "tempfile.mkdtemp", "tempfile.mkstemp")
happened = []
sys.addaudithook(lambda event, args: happened.append(event) if event in STARTS else None)
import ranks
heavy = {"torch", "numpy", "matplotlib", "cloudpickle", "IPython"} & set(sys.modules)
print(happened, sorted(heavy), threading.active_count(), ranks.__version__ > "0", "COLORS" in ranks.__all__)
"""


def test_an_import_starts_nothing_and_loads_nothing_heavy():
    """Processes, connections and temporary files come with the first run, torch with it, matplotlib with a figure."""
    done = subprocess.run([sys.executable, "-c", WATCHED_IMPORT], capture_output=True, text=True, timeout=900)
    assert done.stdout == "[] [] 1 True True\n", done.stderr


@pytest.mark.parametrize(
    ("system", "variable", "forks"),
    [
        ("linux", None, True),
        ("linux", "spawn", False),
        ("darwin", None, False),
        ("darwin", "fork", True),
        ("win32", None, False),
        ("win32", "fork", False),
    ],
)
def test_ranks_are_forked_where_that_is_safe(monkeypatch, system, variable, forks):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(os, "fork", print, raising=False)
    if system == "win32":
        monkeypatch.delattr(os, "fork")
    if variable is None:
        monkeypatch.delenv("RANKS_START", raising=False)
    else:
        monkeypatch.setenv("RANKS_START", variable)
    assert processes.can_fork() is forks


#: A module that each Python imports when it starts. From then on, the modules of `ranks` find what Windows has.
LIKE_WINDOWS = """
import importlib.abc, importlib.machinery, sys, types

# What ranks imports, and what that imports in turn, finds the system as it is.
import atexit, ctypes, faulthandler, multiprocessing.connection, os, pathlib, select, shutil, signal, socket, subprocess
import tempfile, multiprocessing.popen_spawn_posix, multiprocessing.util
import cloudpickle, numpy, torch.distributed

def without(module, *names):
    found = types.ModuleType(module.__name__)
    found.__dict__.update({name: value for name, value in vars(module).items() if name not in names})
    return found

LIKE = {
    "os": without(
        os, "fork", "forkpty", "setsid", "getuid", "geteuid", "getgid", "getpgid", "setpgid", "killpg", "wait", "wait3",
        "wait4", "waitid", "WNOHANG", "posix_spawn", "pipe2", "mkfifo", "uname", "sysconf", "O_NONBLOCK", "O_CLOEXEC",
        "O_DIRECTORY", "O_NOFOLLOW", *(name for name in dir(os) if name.startswith(("sched_", "SCHED_", "WIF"))),
    ),
    "signal": without(
        signal, "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGHUP", "SIGQUIT", "SIGALRM", "SIGSTOP", "SIGCONT",
        "alarm", "setitimer", "pause", "pthread_kill", "pthread_sigmask", "sigwait",
    ),
    "socket": without(socket, "AF_UNIX", "send_fds", "recv_fds", "MSG_DONTWAIT"),
    "faulthandler": without(faulthandler, "register", "unregister"),
}
MISSING = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "posix", "readline")

class Loader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module):
        there = {name: sys.modules.pop(name) for name in (*LIKE, *MISSING) if name in sys.modules}
        system = sys.platform
        sys.modules.update({**LIKE, **dict.fromkeys(MISSING)})
        sys.platform = "win32"
        try:
            super().exec_module(module)
        finally:
            sys.platform = system
            for name in (*LIKE, *MISSING):
                sys.modules.pop(name, None)
            sys.modules.update(there)
        if hasattr(module, "sys"):
            module.sys = without(sys)
            module.sys.platform = "win32"

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] != "ranks":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None:
            spec.loader = Loader(spec.loader.name, spec.loader.path)
        return spec

sys.meta_path.insert(0, Finder())
"""

RUNS = """
import signal
import torch, torch.distributed as dist
import ranks
from ranks import processes

assert not hasattr(processes.os, "fork") and processes.sys.platform == "win32"

def worker(rank, world_size):
    print("one\\ntwo")
    x = torch.tensor([rank + 1.0])
    dist.all_reduce(x)
    return x.item()

results = ranks.run(worker, world_size=2, echo=False)
print(list(results), results.stdout, results.ledger[0].call)

def receive_first(rank, world_size):
    dist.recv(torch.zeros(1), src=1 - rank)

for what in (receive_first, lambda rank, world_size: rank or 1 / 0):
    try:
        ranks.run(what, world_size=2)
    except (ranks.HangError, ranks.RankError) as error:
        print(error.headline)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="takes from Linux what Windows lacks")
def test_without_what_windows_lacks_ranks_run_all_the_same(tmp_path):
    """In the program and in its ranks: no module is needed that is missing there, nor a name in one that is there."""
    (tmp_path / "sitecustomize.py").write_text(LIKE_WINDOWS)
    (tmp_path / "script.py").write_text(RUNS)
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900)
    assert done.stdout.splitlines() == [
        "[3.0, 3.0] ['one\\ntwo\\n', 'one\\ntwo\\n'] all_reduce",
        "every rank waits forever",
        "rank 0 raised ZeroDivisionError: division by zero",
    ], done.stderr
