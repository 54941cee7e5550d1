"""Control groups: limits of the system on all processes of a jail together, where this user can make such groups.

The limits that each process has do not bound their sum, and root's processes are not counted at all. `outside` watches
the sum as well, but sees only what belongs to a process. And without a group of its own, a jail has a share of the
processors for each session that its processes make, which leaves little to those beside it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

#: Where the groups are: in version 1 of control groups, each kind of limit has a place of its own.
ROOTS = {
    "processes": (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")),
    "memory": (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")),
    "processors": (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/cpu,cpuacct"), Path("/sys/fs/cgroup")),
}
#: Bytes for the jail's own Python with torch loaded, in addition to what a submission may use.
BASE = 2 * 2**30


class ControlGroups:
    """The control groups of one jail. processes, memory: how many, and bytes, for all of its processes together.

    Of the processors, each jail has as large a share as another. `holds` names the limits that the system has accepted.
    """

    def __init__(self, processes: int, memory: int):
        most = str(memory + BASE)
        wanted = {
            "processes": [("pids.max", str(processes))],
            "memory": [("memory.max", most), ("memory.limit_in_bytes", most)],
            "processors": [("cpu.weight", "100"), ("cpu.shares", "1024")],
        }
        swap = [("memory.swap.max", "0"), ("memory.memsw.limit_in_bytes", most)]
        self.groups: list[Path] = []
        self.holds: list[str] = []
        name = f"autograder-{os.getpid()}-{time.monotonic_ns()}"
        for kind, roots in ROOTS.items():
            group = next((root / name for root in roots if (root / "cgroup.procs").exists()), None)
            if group is None:
                continue
            _sweep(group.parent)
            with contextlib.suppress(OSError):
                group.mkdir(exist_ok=True)
                if any(_set(group / file, value) for file, value in wanted[kind]):
                    self.holds.append(kind)
                    self.groups += [group] if group not in self.groups else []
                    if kind == "memory" and any(_set(group / file, value) for file, value in swap):
                        self.holds.append("swap")
                elif group not in self.groups:
                    group.rmdir()

    def enter(self) -> None:
        """Put this process into the groups, and so all that it starts."""
        for group in self.groups:
            (group / "cgroup.procs").write_text("0")

    def take_down(self) -> None:
        """End what is left in the groups, and remove them, within 30 seconds.

        A bubblewrap that is killed while it starts leaves a process behind that does not yet end with it.
        """
        until = time.monotonic() + 30
        for group in self.groups:
            while group.exists() and time.monotonic() < until:
                with contextlib.suppress(OSError):
                    group.rmdir()
                    break
                _end_all(group)
                time.sleep(0.01)


def limits_here(processes: int, memory: int) -> str:
    """One line that says which limits on all processes of a submission the system keeps on this machine."""
    groups = ControlGroups(processes, memory)
    groups.take_down()
    by_system = ", ".join(groups.holds)
    rest = [kind for kind in ("processes", "memory", "swap", "processors") if kind not in groups.holds]
    said = f"kept by the system: {by_system}" if by_system else "no control group can be written here"
    return f"Limits on a jail as a whole: {said}" + (f"; only watched: {', '.join(rest)}." if rest else ".")


def _end_all(group: Path) -> None:
    """Kill the processes of a group; those that are gone meanwhile do not matter."""
    with contextlib.suppress(OSError):
        for pid in (group / "cgroup.procs").read_text().split():
            if int(pid) > 0:  # 0 is a process that cannot be seen from here
                with contextlib.suppress(OSError):
                    os.kill(int(pid), signal.SIGKILL)


def _set(file: Path, value: str) -> bool:
    if not file.exists():  # opening it for writing would try to make it
        return False
    with contextlib.suppress(OSError):
        file.write_text(value)
        return True
    return False


def _sweep(root: Path) -> None:
    """Remove control groups left by killed graders; the system refuses to remove one that is in use."""
    for group in left_by_the_dead(root, "autograder"):
        with contextlib.suppress(OSError):
            group.rmdir()


def left_by_the_dead(root: Path, prefix: str) -> list[Path]:
    """What is in a folder and named `PREFIX-PID-…` after a process that no longer runs."""
    found = [(path, path.name.split("-")[1]) for path in root.glob(f"{prefix}-*-*")]
    return [path for path, pid in found if pid.isdigit() and not Path(f"/proc/{pid}").exists()]
