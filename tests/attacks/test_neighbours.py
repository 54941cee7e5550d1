"""What a submission can do to the one after it in the same jail, and to one that is graded at the same moment."""

import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from autograder.grade.jail import control_groups, outside
from autograder.grade.running import clock
from autograder.lesson import notebook
from ranks.stopwatch import family
from tests.attacks import test_folders
from tests.helpers.jailed import run
from tests.helpers.patience import PATIENCE

pytestmark = pytest.mark.jail

SECRET = "of-ada-only-"
#: Looks for SECRET in all memory of its process, and says how often it is there.
SEARCH = """
import re
sought, found = re.compile(b"of-ada-only-[x]"), 0
with open("/proc/self/mem", "rb", buffering=0) as memory:
    for line in open("/proc/self/maps"):
        first, last = (int(number, 16) for number in line.split()[0].split("-"))
        while first < last and "r" in line.split()[1]:
            try:
                memory.seek(first)
                found += len(sought.findall(memory.read(min(1 << 24, last - first))))
            except (OSError, ValueError, OverflowError):
                break
            first += 1 << 24
print(found)
"""

DESCRIPTORS = """
import fcntl, os


def look(process):
    seen = []
    for name in sorted(os.listdir(f"/proc/{process}/fd"), key=int):
        try:
            seen.append((int(name), os.readlink(f"/proc/{process}/fd/{name}").split(":")[0]))
        except OSError:
            pass
    return seen

def flags():
    return [(n, what, fcntl.fcntl(n, fcntl.F_GETFL)) for n, what in look("self") if what not in ("socket", "/proc")]

print(look(1))
print([one for one in flags() if not one[1].startswith("/tmp/")])
for number, what, _ in flags():
    fcntl.fcntl(number, fcntl.F_SETFL, os.O_NONBLOCK | os.O_APPEND)
    fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
"""

GROUPS = "import os, signal\nprint(os.getpgid(0) > 0, os.getpgid(1) > 0, os.getsid(1) > 0)\n"

TERMINALS = """
import os
taken = []
try:
    while len(taken) < 100:
        taken.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
except OSError as error:
    print(len(taken), error.strerror)
"""


@contextlib.contextmanager
def started(jail, files=None):
    """A submission in this jail."""
    folder = tempfile.mkdtemp(dir="/tmp")
    jailed = jail.start(folder, files)
    yield jailed
    jailed.end()
    os.rmdir(folder)


def test_data_of_one_submission_is_not_in_the_memory_of_the_next(jail):
    """Both processes are forked from the same one, which must therefore never have held the data."""
    for size in (3_000, 30_000, 300_000):
        data = f"{SECRET}x".encode() * (size // len(SECRET))
        with started(jail, {"data.csv": data}) as jailed:
            assert run(jailed, f"print(open('data.csv').read().count('{SECRET}x'))")[0] == f"{size // len(SECRET)}\n"
    with started(jail) as jailed:
        assert run(jailed, SEARCH) == ("0\n", None)


def test_submissions_share_no_open_file(jail):
    """What one writes down in a shared one, by its mode or a lock, would be there for those after it."""
    said = []
    for _ in range(2):
        with started(jail) as jailed:
            said.append(run(jailed, DESCRIPTORS)[0])
    assert said[0] == said[1]
    of_init, own = (eval(line) for line in said[0].splitlines())
    assert {what for _, what in of_init} == {"/dev/null"} and "pipe" not in str(own)


def test_a_signal_to_its_group_stops_only_itself(jail):
    """The group of an ordinary user's submission held a process that is waited for."""
    before = clock.now()
    with started(jail) as jailed, pytest.raises(outside.TooLongError):
        run(jailed, GROUPS + "os.kill(0, signal.SIGSTOP)", seconds=1)
    with started(jail) as after:
        assert run(after, GROUPS)[0] == "True True True\n"
    assert clock.now() - before < 60, "nobody waits for a process that it has stopped"


def test_each_has_terminals_of_its_own_and_few(jail, jailed):
    assert run(jailed, TERMINALS) == ("64 No space left on device\n", None)
    with started(jail) as other:
        assert run(other, "import os\nprint(len(os.openpty()), os.path.exists('/dev/pts/1'))") == ("2 False\n", None)


CRASH = """
import os, resource
for limit in ((0, 0), (0, 1)):
    try:
        resource.setrlimit(resource.RLIMIT_CORE, limit)
        print("set")
    except ValueError:  # what Python makes of it
        print("ValueError")
print(open("/proc/self/limits").read().split("Max core file size")[1].split()[:2])
resource.setrlimit(resource.RLIMIT_NOFILE, (50, 100))
"""


def test_no_crash_starts_a_program_of_the_host(jailed):
    """The system starts it as root, outside the jail, unless the limit is one byte. One of 0 does not keep it off."""
    said, raised = run(jailed, CRASH)
    most = min(1, resource.getrlimit(resource.RLIMIT_CORE)[1] % 2**64)
    assert (said, raised) == (f"ValueError\nValueError\n['{most}', '{most}']\n", None)


# --- of one user ------------------------------------------------------------------------------------------

REACH = """
import ctypes, os, resource, signal
system = ctypes.CDLL(None, use_errno=True)
reached = []
for process in {processes}:
    for what, call in {{
        "signal": lambda: os.kill(process, 0),
        "group": lambda: os.killpg(process, 0),
        "handle": lambda: os.pidfd_open(process),
        "limits": lambda: resource.prlimit(process, resource.RLIMIT_NOFILE),
        "nice": lambda: os.setpriority(os.PRIO_PROCESS, process, 19),
        "root": lambda: os.listdir(f"/proc/{{process}}/root"),
        "memory": lambda: open(f"/proc/{{process}}/mem", "rb"),
    }}.items():
        try:
            call()
            reached.append((what, process))
        except OSError:
            pass
    if not system.ptrace(16, process, 0, 0) or not system.syscall(310, process, 0, 0, 0, 0, 0):
        reached.append(("trace", process))
os.setpriority(os.PRIO_USER, 0, 19)
os.setpriority(os.PRIO_USER, os.getuid(), 19)
for name in ("inotify_init1", "fanotify_init"):
    if getattr(system, name)(0, 0) >= 0:
        reached.append(name)
print(reached)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
try:
    os.kill(-1, signal.SIGTERM)
except OSError:
    pass
"""

HOLD = """
import os, time
held = 0
try:
    while held < 300:
        if not os.fork():
            time.sleep(1000)
        held += 1
except OSError:
    pass
print(held > 90)
"""


def test_processes_of_another_submission_cannot_be_reached(jail):
    """Not even by their numbers outside, and where both have the same user number."""
    with outside.Jail(jail.limits) as second, started(jail) as victim, started(second) as attacker:
        of_victim = family(jail.pid)
        numbers = [number for number in of_victim if number > 50]  # small ones are the attacker's own
        nice = [os.getpriority(os.PRIO_PROCESS, number) for number in of_victim]
        assert run(attacker, REACH.format(processes=numbers)) == ("[]\n", None)
        assert run(attacker, HOLD) == ("True\n", None)
        fork = "import os\nprint(len([os.waitpid(pid, 0) for _ in range(60) if (pid := os.fork()) or os._exit(0)]))"
        assert run(victim, fork) == ("60\n", None)
        assert [os.getpriority(os.PRIO_PROCESS, number) for number in of_victim] == nice


SESSIONS = """
import os, time
for _ in range({sessions}):
    if not os.fork():
        os.setsid()
        while True: pass
time.sleep(1000)
"""

BUSY = """
import time
end, before = time.monotonic() + {seconds}, time.process_time()
while time.monotonic() < end: pass
print(time.process_time() - before)
"""


def share_of(jailed):
    """The part of one processor that a busy submission has."""
    return float(run(jailed, BUSY.format(seconds=5), seconds=PATIENCE)[0]) / 5


@contextlib.contextmanager
def beside(limits, sessions):
    """In a jail of its own, busy processes, each in a session of its own; the submission that has started them."""

    def start(attacker):
        with contextlib.suppress(outside.DiedError, outside.TooLongError):
            run(attacker, SESSIONS.format(sessions=sessions), seconds=PATIENCE)

    with outside.Jail(limits) as second:
        with started(second) as attacker:
            thread = threading.Thread(target=start, args=(attacker,))
            thread.start()
            yield attacker
        thread.join()


@pytest.mark.slow
def test_many_sessions_of_a_neighbour_leave_a_submission_its_share(jail):
    """Without groups, a busy neighbour had 0.02 of a processor beside 100 sessions, and honest students lost marks.

    With them it has 0.56 of 0.96 on a quiet machine of two cores, 0.21 beside twelve other busy processes.
    """
    if "processors" not in jail.control_groups.holds:
        pytest.skip("control groups cannot be made here")
    with started(jail) as victim:
        with beside(jail.limits, 0):
            alone = share_of(victim)
        with beside(jail.limits, 100) as attacker:
            while len(family(attacker.jail.pid)) < 100:
                assert not attacker.why_ended
            share = share_of(victim)
    assert share > alone / 8, (alone, share)


def test_where_no_group_shares_out_the_processors_a_submission_with_many_sessions_is_ended(jail, monkeypatch):
    monkeypatch.setattr(control_groups, "ROOTS", {})
    with beside(jail.limits, 100) as attacker:
        until = time.monotonic() + PATIENCE
        while not attacker.why_ended and time.monotonic() < until:
            time.sleep(0.1)
        assert attacker.why_ended == "it started too many sessions (`os.setsid`)"
    with beside(jail.limits, 8) as attacker:
        time.sleep(1)
        assert not attacker.why_ended, "torchrun makes a session for each of its ranks"


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.skipif(
    os.geteuid() != 0 or Path("/dev/null").stat().st_mode & 0o006 != 0o006,
    reason="needs root, and /dev/null open to all",
)
def test_all_of_this_holds_where_an_ordinary_user_grades():
    """Then the jails have that user's number, and modes forbid what they say.

    Without root there are no control groups here, and no files of others.
    """
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o777)
        command = [*_as_nobody(), sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += [f"--basetemp={folder}/tests", __file__, test_folders.__file__, "-k"]
        command += ["not ordinary and not leave_a_submission_its_share and not second_name_for_a_file"]
        environment = {**os.environ, "HOME": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            command, cwd=notebook.ROOT, env=environment, capture_output=True, text=True, timeout=3600, check=False
        )
    assert done.returncode == 0 and " passed" in done.stdout and "skipped" not in done.stdout, done.stdout[-5000:]


def _as_nobody():
    """What makes root a user for whom limits hold, and who may read what this Python needs."""
    command, home = ["bwrap", "--dev-bind", "/", "/"], Path.home()
    if Path(sys.base_prefix).is_relative_to(home):
        command += ["--tmpfs", str(home)]
        for parent in reversed(Path(sys.base_prefix).relative_to(home).parents[:-1]):
            command += ["--perms", "0755", "--dir", str(home / parent)]
        command += ["--ro-bind", sys.base_prefix, sys.base_prefix]
    return [*command, "--cap-add", "ALL", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
