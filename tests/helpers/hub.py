"""The recipe's JupyterHub as a trial, on free ports and in a folder of its own, and a browser's way into it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from autograder.lesson import notebook
from tests.helpers import npm
from tests.helpers.browser import Tab
from tests.helpers.patience import PATIENCE

RECIPE = notebook.ROOT / "examples" / "hub"
TEACHER = "teacher"
INSTALL = "install npm, which brings the hub's proxy (Debian: apt-get install npm)"
_PROXY = notebook.ROOT / "_build" / "proxy"


def can_have_proxy() -> bool:
    """Is the proxy there, or npm, which installs it?"""
    return shutil.which("npm") is not None or (_PROXY / "node_modules").is_dir()


def proxy() -> Path:
    """The folder with configurable-http-proxy in the version of the recipe, installed now if it is not there.

    `npm.NoPackageError` where it cannot be.
    """
    return npm.install(RECIPE / "proxy" / "package-lock.json", _PROXY) / ".bin"


class Hub:
    """A hub for these students, whose course is the folder `course`; `folder` holds homes, exchange and logs."""

    def __init__(self, folder: Path, course: Path, students: tuple[str, ...]):
        self.folder, self.course = folder, course
        folder.mkdir(parents=True)
        (folder / "exchange").mkdir()
        (folder / "exchange").chmod(0o1777)
        (folder / "students.txt").write_text("\n".join(students) + "\n")
        for name in (*students, TEACHER):
            (folder / "homes" / name).mkdir(parents=True)
        port = _three_free_ports()
        self.url = f"http://127.0.0.1:{port}"
        programs = str(Path(sys.executable).parent)
        names = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR")
        self.environment = {name: os.environ[name] for name in names if name in os.environ} | {
            "PATH": os.pathsep.join([programs, str(proxy()), os.environ["PATH"]]),
            "HOME": str(folder),
            "HUB_TRIAL": "1",
            "HUB_FOLDER": str(folder),
            "HUB_COURSE": str(course),
            "HUB_TEACHERS_BIN": programs,
            "HUB_PORT": str(port),
        }
        self.log = open(folder / "hub.log", "w")  # noqa: SIM115 (closed in close)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jupyterhub", "-f", str(RECIPE / "jupyterhub_config.py")],
            cwd=folder,
            env=self.environment,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )
        until = time.monotonic() + PATIENCE
        while not self._answers():
            assert self.process.poll() is None and time.monotonic() < until, self.said()
            time.sleep(0.3)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/hub/health", timeout=5) as answer:
            return answer.status == 200
        return False

    def said(self) -> str:
        """The end of the log."""
        return (self.folder / "hub.log").read_text(errors="replace")[-6000:]

    def home(self, name: str) -> Path:
        """A person's folder."""
        return self.folder / "homes" / name

    def login(self, tab: Tab, name: str, path: str = "lab") -> None:
        """Log in as this person and wait for the page at `path` of the person's own server."""
        tab.page.goto(f"{self.url}/hub/login?next=/hub/user-redirect/{path}")
        tab.page.fill("#username_input", name)
        tab.page.fill("#password_input", "any")
        tab.page.click("#login_submit")
        tab.page.wait_for_url(f"{self.url}/user/{name}/{path}**")

    def run(self, *command: str) -> str:
        """What a command of the instructor prints, in the course's folder, as in a terminal of the hub."""
        told = {"JUPYTER_CONFIG_PATH": str(RECIPE / "everyone"), "NBGRADER_EXCHANGE": str(self.folder / "exchange")}
        environment = self.environment | told | {"HOME": str(self.home(TEACHER))}
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=self.course,
            env=environment,
            capture_output=True,
            text=True,
            timeout=3600,  # grading on a busy machine
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def close(self) -> None:
        """End the hub, its proxy and everybody's server."""
        self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=300)
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.log.close()


def _three_free_ports() -> int:
    """The first of three neighboring ports that are free."""
    for start in range(18000 + os.getpid() % 900 * 10, 60000, 10):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(start, start + 3):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return start
    raise AssertionError("no free ports")
