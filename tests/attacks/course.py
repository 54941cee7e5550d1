"""A machine with a class of attackers on it: how it is built, what on it must not change, how it is graded.

A `Machine` is a folder: `course/` is the class, `home/` the instructor's home, `other/` another course of the same
instructor. `python -m tests.attacks.course FOLDER` grades it, in a process of its own, for whoever watches.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import random
import re
import shutil
import socket
import stat
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import nbformat

from autograder.lesson import notebook
from ranks.stopwatch import Stopwatch
from tests.attacks import catalog, lessons
from tests.attacks.attack import Attack
from tests.helpers import toy_course

#: An honest student after each few attackers, and one at each end.
HONEST_EVERY = 8
#: What programs write into a home that nobody attacks.
OWN_FILES = re.compile(
    r"\.cache/|\.config/matplotlib/|\.local/share/jupyter/(runtime/|nbsignatures|notebook_secret)|\.ipython/README|"
    r"\.ipython/profile_default/(db|log|pid|security|history|startup/README)|\.ipython/(extensions|nbextensions)"
)


class Machine:
    """A folder with a class, a home and another course in it, before or after grading."""

    def __init__(self, root: Path):
        self.root = Path(root).resolve()
        self.course, self.home, self.other = (self.root / name for name in ("course", "home", "other"))

    @property
    def places(self) -> dict[str, str]:
        """What an attack may call this machine's places."""
        ports = json.loads((self.root / "ports.json").read_text())
        names = {"COURSE": self.course, "HOST": self.root, "HOME": self.home, "REPO": notebook.ROOT, **ports}
        return {name: str(place) for name, place in names.items()}

    @property
    def roster(self) -> dict[str, Attack | None]:
        """Who handed in which attack; None for the honest. In the order in which they are graded."""
        names = json.loads((self.root / "roster.json").read_text())
        return {student: catalog.find(name) if name else None for student, name in names.items()}

    def lessons(self) -> list[str]:
        """The lessons that somebody handed in."""
        return sorted({path.name for path in (self.course / "submitted").glob("*/*")})

    def build(self, attacks: Iterable[Attack], timeout: int = 5) -> Machine:
        """Make it: the honest and the attackers hand in, nothing is graded yet."""
        attacks = list(attacks)
        toy = self.toy(timeout)
        for name in {attack.lesson for attack in attacks} - {toy_course.LESSON}:
            (self.course / "solutions" / name / "files").mkdir(parents=True)
            nbformat.write(lessons.solution(name), self.course / "solutions" / name / f"{name}.ipynb")
            for file in lessons.files(name):
                shutil.copy(file, self.course / "solutions" / name / "files")
            toy.course.prepare(name)
        self._furnish()
        (self.root / "timeout.json").write_text(json.dumps(timeout))
        names: list[Attack | None] = [None]
        for number, attack in enumerate(attacks, start=1):
            names += [attack] if number % HONEST_EVERY else [attack, None]
        names += [None] if names[-1] else []
        roster = {f"student-{number:02d}": attack for number, attack in enumerate(names, start=1)}
        kept = {student: attack and attack.name for student, attack in roster.items()}
        (self.root / "roster.json").write_text(json.dumps(kept))
        for student, attack in roster.items():
            folder = self.course / "submitted" / student
            if attack:
                attack.hand_in(folder / attack.lesson, self.places)
            for lesson in {other.lesson for other in attacks} if attack is None else ():
                (folder / lesson).mkdir(parents=True)
                nbformat.write(lessons.right(lesson), folder / lesson / f"{lesson}.ipynb")
        return self

    def toy(self, timeout: int = 5) -> toy_course.Toy:
        """The class as a course."""
        if self.course.is_dir():
            toy = toy_course.Toy.__new__(toy_course.Toy)
            toy.root = self.course
            toy.course = toy_course.Course(self.course, timeout)
            return toy
        return toy_course.Toy(self.course, timeout)

    def _furnish(self) -> None:
        """What somebody might read, change or fill."""
        for name in (".ipython/profile_default/startup", ".jupyter", ".local/share/jupyter/kernels"):
            (self.home / name).mkdir(parents=True)
        (self.home / ".bashrc").write_text("# the instructor's\n")
        (self.home / ".ipython/profile_default/startup/10-own.py").write_text("# the instructor's\n")
        shutil.copytree(self.course / "solutions", self.other / "solutions")
        folder = self.other / "submitted" / "student-90" / toy_course.LESSON
        folder.mkdir(parents=True)
        nbformat.write(lessons.right(toy_course.LESSON), folder / f"{toy_course.LESSON}.ipynb")
        shutil.copy(self.course / "gradebook.db", self.other / "gradebook.db")
        (self.root / "ports.json").write_text(json.dumps({"PORT": str(_free_port()), "LISTEN": str(_free_port())}))

    def digest(self) -> dict[str, str]:
        """What must not change: place → what is there. Neither follows links nor opens pipes."""
        course = [self.course / name for name in ("solutions", "submitted", "nbgrader_config.py")]
        ours = ("solutions", "autograder", "ranks", "machines", "nbgrader_config.py")
        repository = [notebook.ROOT / name for name in ours]
        found = {}
        for place in (*course, self.home, self.other, *repository):
            base = notebook.ROOT if place in repository else self.root
            below = (Path(where, name) for where, folders, files in os.walk(place) for name in folders + files)
            for path in [place, *below]:
                name = str(path.relative_to(base))
                if place != self.home or not OWN_FILES.match(str(path.relative_to(self.home))):
                    found[name] = _what(path)
        for name in os.listdir("/dev/shm"):
            if "planted" in name:
                found[f"/dev/shm/{name}"] = "there"
        for name in os.listdir(sysconfig.get_path("purelib")):
            if name.endswith((".pth", ".py")):
                found[f"site-packages/{name}"] = "there"
        return {name: what for name, what in found.items() if what != "folder" and "__pycache__" not in name}


def _what(path: Path) -> str:
    """A file's digest, a link's target, the kind of anything else."""
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            return f"link to {os.readlink(path)}"
        if stat.S_ISDIR(mode):
            return "folder"
        return hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(mode) else f"mode {mode:o}"
    except OSError as error:
        return type(error).__name__


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Accomplice:
    """Somebody on this machine who knows the answer: on a port, on a socket with a path and on one without.

    heard: what was said to it.
    """

    def __init__(self, places: dict[str, str]):
        self.places, self.heard, self.servers = places, [], []

    def __enter__(self) -> Accomplice:
        path = self.places["HOST"] + "/accomplice"
        addresses = [(socket.AF_INET, ("127.0.0.1", int(self.places["PORT"]))), (socket.AF_UNIX, path)]
        addresses.append((socket.AF_UNIX, "\0accomplice-" + self.places["PORT"]))
        for family, address in addresses:
            if len(str(address)) > 100:  # the most that a path of a socket can have
                continue
            server = socket.socket(family)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(address)
            server.listen()
            self.servers.append(server)
            threading.Thread(target=self._serve, args=(server,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers:
            server.close()
        with contextlib.suppress(OSError):
            os.unlink(self.places["HOST"] + "/accomplice")

    def _serve(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                with server.accept()[0] as line:
                    line.settimeout(5)
                    said = line.recv(10_000).decode(errors="replace")
                    self.heard.append(said)
                    line.sendall(b"return x * x")


def descendants() -> set[int]:
    """The processes below this one that still run."""
    parents = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
            if fields[0] != "Z":
                parents[int(entry)] = int(fields[1])
    found, new = set(), {os.getpid()}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


class Run:
    """What became of a machine that was graded: problems, scores, what changed, what was left."""

    def __init__(self, machine: Machine, timeout: float):
        self.machine, before = machine, machine.digest()
        environment = {**os.environ, "HOME": str(machine.home), "TMPDIR": str(machine.root / "tmp")}
        environment["PYTHONPATH"] = str(notebook.ROOT)
        (machine.root / "tmp").mkdir()
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # processes whose parents end become this one's children
        there = descendants()
        # -P: without importing what an attack left in the folder that it starts in
        command = [sys.executable, "-P", "-m", "tests.attacks.course", str(machine.root)]
        with Accomplice(machine.places) as accomplice:
            running = subprocess.Popen(command, env=environment, cwd=machine.root, stdin=subprocess.DEVNULL)
            stopwatch = Stopwatch(lambda: [running.pid])
            while running.poll() is None and stopwatch.seconds() < timeout:
                time.sleep(0.1)
            running.kill()
            self.status = running.wait()
            until = time.monotonic() + 60  # what was told to end has ended by then
            while (left := descendants() - there) and time.monotonic() < until:
                time.sleep(0.05)
        self.left, self.heard = left, accomplice.heard
        after = machine.digest()
        self.changed = sorted(name for name in before.keys() | after if before.get(name) != after.get(name))
        names = sorted(path.name for path in (machine.root / "tmp").iterdir())
        self.temporary = [name for name in names if not name.startswith("torchinductor_")]  # which torch leaves

    @property
    def result(self) -> dict:
        """What the grading process wrote down when it had finished."""
        return json.loads((self.machine.root / "result.json").read_text())

    def points(self, student: str, lesson: str) -> dict[str, float]:
        """A student's points by exercise."""
        place, scores = f"{student}/{lesson}/", self.result["scores"]
        return {key[len(place) :].split("-")[1]: score for key, (score, _) in scores.items() if key.startswith(place)}

    def comment(self, student: str, lesson: str, exercise: str) -> str:
        """What the gradebook says about an exercise."""
        place, comments = f"{student}/{lesson}/", self.result["comments"]
        return next(text for key, text in comments.items() if key.startswith(place) and f"-{exercise}-" in key)


def grade(root: Path) -> None:
    """Grade the machine's class once, and write down what came out."""
    machine = Machine(root)
    toy = machine.toy(timeout=json.loads((machine.root / "timeout.json").read_text()))
    problems = toy.course.grade()
    scores = {"/".join(key): value for key, value in toy.course.scores().items()}
    result = {"problems": problems, "scores": scores, "comments": _comments(toy)}
    (machine.root / "result.json").write_text(json.dumps(result))


def _comments(toy: toy_course.Toy) -> dict[str, str]:
    from nbgrader.api import Comment

    with toy.course.gradebook() as gradebook:
        return {
            f"{comment.student.id}/{comment.assignment.name}/{comment.name}": comment.auto_comment or ""
            for comment in gradebook.db.query(Comment).all()
        }


if __name__ == "__main__":
    random.seed(0)
    grade(Path(sys.argv[1]))
