"""What stock nbgrader does with an attack, measured where it can harm nothing: in a jail made for measuring.

Each attack gets a machine of its own in memory: two honest students, one graded before it and one after. Outside of
the class's own folders everything is read-only; there is no network; processes, memory and disk are bounded; after a
while all is ended. `measure(attack)` says what came of it. Needs Linux and bubblewrap.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from autograder.lessons import notebook
from tests.attacks import catalog, course
from tests.attacks.attack import NOTHING, Attack
from tests.attacks.lessons import RING

#: Seconds for the attacker and the student after it together; two honest ones take about five, with ranks twenty.
LIMIT, RING_LIMIT = 120, 240
#: What the machine in memory has: bytes of disk and of shared memory, of address space a process, processes.
DISK, SHARED, MEMORY, PROCESSES = 400 << 20, 64 << 20, 3 << 30, 150
INSIDE = Path("/tmp/machine")
NOBODY = 65534


def available() -> bool:
    """Can this machine measure? It needs bubblewrap, and a /dev/null that a user without rights can open."""
    return sys.platform == "linux" and bool(shutil.which("bwrap")) and Path("/dev/null").stat().st_mode & 0o006 == 0o006


def prepare(folder: Path, lesson: str) -> None:
    """The machine before the attack: the first student has been graded, the others have handed in."""
    first = next(attack for attack in catalog.ATTACKS if attack.lesson == lesson and not attack.beside)
    machine = course.Machine(folder).build([first], stock=True, timeout=_timeout(lesson))
    problem = machine.toy(stock=True, timeout=_timeout(lesson)).course.grade_one("student-01", lesson)
    assert not problem, problem
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o777 if path.is_dir() else 0o666)


def _timeout(lesson: str) -> int:
    return 90 if lesson == RING else 20


def measure(attack: Attack, prepared: Path) -> dict:
    """Grade the attack, and an honest student after it, with stock nbgrader: what happened, as plain data."""
    limit = RING_LIMIT if attack.lesson == RING else LIMIT
    command = [*_as_nobody(), "bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/", "/"]
    command += ["--dev", "/dev", "--proc", "/proc"]
    for place, size in (("/tmp", DISK), ("/dev/shm", SHARED)):
        command += ["--perms", "1777", "--size", str(size), "--tmpfs", place]
    for own in dict.fromkeys(map(str, (notebook.ROOT, sys.prefix, sys.base_prefix))):  # hidden where it lies there
        command += ["--ro-bind", own, own] if own.startswith("/tmp/") else []
    command += ["--ro-bind", str(prepared), "/tmp/prepared", "--chdir", "/tmp"]
    command += [*course.PYTHON, "-m", "tests.attacks.stock", attack.name]
    environment = {**os.environ, **course.IMPORTS}
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, timeout=limit + 60, stdin=subprocess.DEVNULL, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def _as_nobody() -> list[str]:
    """What makes root a user for whom limits hold, and who may read what this Python needs; else nothing."""
    if os.getuid() != 0:
        return []
    command, home = ["bwrap", "--dev-bind", "/", "/"], Path.home()
    if Path(sys.base_prefix).is_relative_to(home):
        command += ["--tmpfs", str(home)]
        for parent in reversed(Path(sys.base_prefix).relative_to(home).parents[:-1]):
            command += ["--perms", "0755", "--dir", str(home / parent)]
        command += ["--ro-bind", sys.base_prefix, sys.base_prefix]
    return [*command, "--cap-add", "ALL", "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


# --- inside -----------------------------------------------------------------------------------------------


def inside(name: str) -> dict:
    """In the jail for measuring: build the machine, let the grader run where it can be ended, look at what is left."""
    attack = catalog.find(name)
    shutil.copytree("/tmp/prepared", INSIDE)
    python = _own_python()
    machine = course.Machine(INSIDE)
    shutil.rmtree(machine.course / "submitted" / "student-02", ignore_errors=True)
    attack.hand_in(machine.course / "submitted" / "student-02" / attack.lesson, machine.places)
    before = machine.digest(ours=False)  # which nobody can change here
    here = {int(pid) for pid in os.listdir("/proc") if pid.isdigit()}
    limit, started = RING_LIMIT if attack.lesson == RING else LIMIT, time.monotonic()
    memory = MEMORY * (3 if attack.lesson == RING else 1)
    limits = ["prlimit", f"--nproc={PROCESSES}", f"--as={memory}", "--core=0"]
    inner = ["bwrap", "--dev-bind", "/", "/", "--unshare-pid", "--proc", "/proc", "--die-with-parent"]
    command = [*limits, *inner, python, "-P", "-m", "tests.attacks.stock", "--grade", attack.name]
    environment = {**os.environ, "HOME": str(machine.home), "PATH": f"{_programs()}:{os.environ['PATH']}"}
    with course.Accomplice(machine.places) as accomplice, (INSIDE / "log").open("wb") as log:
        running = subprocess.Popen(
            command, env=environment, cwd=INSIDE, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        peak = _watch(running, here, started + limit)
        took = time.monotonic() - started
        left = _end_all(running, here)
    record = {"seconds": round(took), "ended": took < limit, "status": running.returncode, "left": left, **peak}
    record |= _results(machine)
    record["changed"] = course.changes(before, machine.digest(ours=False))
    record["told"] = any("secret" in said for said in accomplice.heard)
    return record


def _own_python() -> str:
    """A Python environment that its owner may change, as everybody's is, with the packages of this one."""
    bin_, packages = (
        INSIDE / "venv/bin",
        INSIDE / f"venv/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages",
    )
    bin_.mkdir(parents=True)
    packages.mkdir(parents=True)
    (bin_ / "python").symlink_to(sys.executable)
    (INSIDE / "venv/pyvenv.cfg").write_text(f"home = {Path(sys._base_executable).parent}\n")
    (packages / "all.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return str(bin_ / "python")


def _programs() -> str:
    return str(Path(sys.executable).parent)


def _watch(running: subprocess.Popen, here: set[int], until: float) -> dict:
    """Wait for the grader; the most memory and processes that it had on the way."""
    most = {"megabytes": 0, "processes": 0}
    while running.poll() is None and time.monotonic() < until:
        sizes = [_resident(pid) for pid in _processes(here)]
        most["megabytes"] = max(most["megabytes"], round(sum(sizes) / 2**20))
        most["processes"] = max(most["processes"], len(sizes))
        time.sleep(0.1)
    return most


def _processes(here: set[int]) -> list[int]:
    return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and int(pid) not in here]


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
    return 0


def _end_all(running: subprocess.Popen, here: set[int]) -> int:
    """End the grader's whole namespace; how many processes outlived the grader."""
    left = 0
    finished = INSIDE / "left.json"
    if finished.exists():
        left = json.loads(finished.read_text())
    running.kill()
    running.wait()
    for pid in _processes(here):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return left


def _results(machine: course.Machine) -> dict:
    record = {"problem": None, "next_problem": None, "points": None, "next": None, "before": None}
    with contextlib.suppress(OSError, ValueError):
        record |= json.loads((INSIDE / "result.json").read_text())
    return record


def grade(name: str) -> None:
    """Grade the attacker and the student after it; write down what is known after each step."""
    attack = catalog.find(name)
    machine = course.Machine(INSIDE)
    toy = machine.toy(stock=True, timeout=_timeout(attack.lesson))
    result = {}

    def say(**more) -> None:
        result.update(more)
        (INSIDE / "result.json").write_text(json.dumps(result))

    there = course.descendants(1)
    say(problem=_grade_one(toy, "student-02", attack.lesson))
    say(points=_points(machine, toy, "student-02"), before=_points(machine, toy, "student-01"))
    say(next_problem=_grade_one(toy, "student-03", attack.lesson))
    say(points=_points(machine, toy, "student-02"), next=_points(machine, toy, "student-03"))
    time.sleep(0.5)
    (INSIDE / "left.json").write_text(json.dumps(len(course.descendants(1) - there)))


def _grade_one(toy, student: str, lesson: str) -> str:
    try:
        return toy.course.grade_one(student, lesson)[:200]
    except BaseException as error:
        return f"{type(error).__name__}: {error}".split("\n")[0][:200]


def _points(machine, toy, student: str) -> dict | None:
    try:
        return {name.split("-")[1]: score for name, score in machine.points(student, toy).items()}
    except Exception as error:
        print(error)
        return {}


# --- what it means ----------------------------------------------------------------------------------------


def harms(attack: Attack, record: dict) -> list[str]:
    """What the attack got from stock nbgrader, a phrase each; [] when it got nothing."""
    found = []
    full = {"ex1": 3.0, "ex3": 3.0} if attack.lesson == RING else {"ex1": 1.0, "ex2": 2.0, "ex3": 3.0}
    points, worth = record["points"] or {}, attack.worth
    gained = sum(points.values())
    if gained > sum(worth.values()):
        found.append(f"{gained:g} points for work worth {sum(worth.values()):g}")
    if not record["ended"]:
        found.append("the run never ends")
    elif record["status"] and record["next"] is None:
        found.append("the run is ended by it")
    if record["problem"]:
        found.append(f"no grade: {record['problem'].split(': ', 1)[-1][:60].strip()}")
    elif record["points"] is not None and not points and worth != NOTHING:
        found.append("no grade")
    if record["before"] not in (None, full):
        found.append("changes the points of a student before it")
    if record["next"] not in (None, full):
        found.append(f"the next student gets {sum(record['next'].values()):g} of 6")
    if files := record["changed"]:
        found.append(f"changes {files[0]}" + (f" and {len(files) - 1} more" if len(files) > 1 else ""))
    if record["left"]:
        found.append("leaves processes running")
    if record["told"]:
        found.append("sends the hidden tests out")
    if record["megabytes"] > 2500 and attack.lesson != RING:
        found.append(f"takes all memory ({record['megabytes'] / 1000:.0f} GB)")
    if record["processes"] > 100:
        found.append("takes all processes")
    if points and 0 <= gained < sum(worth.values()) and not found:
        found.append(f"{gained:g} points for work worth {sum(worth.values()):g}")
    return found


def measure_all(chosen: list[Attack], keep: Callable[[str, dict], None]) -> None:
    """Measure one attack after the other, and hand each record to `keep`."""
    with tempfile.TemporaryDirectory(prefix="attacks-") as folder:
        Path(folder).chmod(0o755)
        for lesson in sorted({attack.lesson for attack in chosen}):
            prepared = Path(folder) / lesson
            prepared.mkdir()
            prepare(prepared, lesson)
            for attack in chosen:
                if attack.lesson == lesson:
                    record = measure(attack, prepared)
                    keep(attack.name, record)
                    said = "; ".join(harms(attack, record)) or "nothing"
                    print(f"{attack.name} ({record['seconds']} s): {said}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--grade":
        grade(sys.argv[2])
    else:
        print(json.dumps(inside(sys.argv[1])))
