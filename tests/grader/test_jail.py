"""What a submission in the jail can reach: files, processes, network, memory, time."""

import json
import os
import platform
import shutil
import subprocess
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

from autograder.grade.jail import control_groups, outside, own_user, wire
from autograder.grade.running import clock
from ranks.stopwatch import family
from tests.helpers.jailed import run
from tests.helpers.patience import PATIENCE

pytestmark = pytest.mark.jail


def test_it_sees_its_files_and_nothing_of_the_course(jailed):
    assert run(jailed, "print(open('data/numbers.txt').read())")[0] == "1 2\n"
    root = Path(outside.HERE).parents[2]
    for path in (
        root / "solutions",
        root / "autograder",
        root / "planner",
        root / "notebooks",
        root / "examples",
        "/etc/passwd",
        "/home",
    ):
        assert run(jailed, f"import os; print(os.path.exists({str(path)!r}))")[0] == "False\n", path
    assert run(jailed, "import autograder")[1] == "ModuleNotFoundError"
    assert run(jailed, "import planner")[1] == "ModuleNotFoundError"
    mine = Path(tempfile.mkstemp(dir="/tmp")[1])
    assert run(jailed, f"print(os.path.exists({str(mine)!r}))")[0] == "False\n"
    mine.unlink()


def test_it_can_write_only_in_its_temporary_folder(jailed):
    source = """
    import os, sys
    for folder in ("/", "/usr", "/jail", "/dev", "/proc/sys", sys.prefix, os.path.dirname(os.__file__)):
        try:
            open(folder + "/planted", "w")
        except OSError as error:
            continue
        print("wrote to", folder)
    open("/tmp/mine", "w").write("x")
    """
    assert run(jailed, source) == ("", None)


def test_all_mounts_but_its_own_are_read_only_and_devices_keep_their_modes_and_times(jailed):
    source = """
    import os
    mounts = [line.split() for line in open('/proc/self/mountinfo')]
    own = ('/tmp', '/dev/shm')
    print(sorted(m[4] for m in mounts if not os.statvfs(m[4]).f_flag & os.ST_RDONLY and m[4] not in own))
    for name in ('null', 'zero', 'full', 'urandom', 'pts/ptmx'):
        for call in (lambda p: os.utime(p, ns=(5, 7)), lambda p: os.chmod(p, 0o640)):
            try:
                call('/dev/' + name)
                print(name)
            except OSError:
                pass
    open('/dev/null', 'w').write('x')
    print(len(os.urandom(4)), len(open('/dev/zero', 'rb').read(3)))
    """
    assert run(jailed, textwrap.dedent(source)) == ("[]\n4 3\n", None)


def test_nothing_of_one_submission_is_there_for_the_next(jail):
    for expected in ("0 False\n", "0 False\n"):
        folder = tempfile.mkdtemp(dir="/tmp")
        jailed = jail.start(folder)
        look = "import os; print(len(os.listdir('/dev/shm')), os.path.exists('/tmp/home/left'))"
        assert run(jailed, look)[0] == expected
        run(jailed, "open('/tmp/home/left', 'w'); open('/dev/shm/left', 'w'); import builtins; builtins.print = None")
        jailed.end()
        os.rmdir(folder)


KEYS = """
import ctypes
call = ctypes.CDLL(None, use_errno=True).syscall
if {leave}:
    print(call(248, b"user", b"left", b"1 2", 3, -4) > 0)  # add_key, to the keyring of this user
else:
    print(call(250, 10, -4, b"user", b"left", 0) > 0)  # keyctl, search
    print(call(249, b"user", b"left", None, -4) > 0)  # request_key
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of the calls")
def test_no_submission_can_leave_a_key_for_the_next(jail, jailed):
    other = jail.start(jailed.folder, {})
    try:
        run(jailed, KEYS.format(leave=True))
        assert run(other, KEYS.format(leave=False)) == ("False\nFalse\n", None)
        assert run(jailed, KEYS.format(leave=True)) == ("False\n", None)
    finally:
        other.end()


def test_it_has_loopback_and_no_network(jailed):
    assert run(jailed, "import ranks; print(list(ranks.run(lambda r, n: r, 2)))")[0] == "[0, 1]\n"
    source = "import socket; print(socket.if_nameindex()); socket.create_connection(('1.1.1.1', 53), timeout=3)"
    out, error = run(jailed, source)
    assert "'lo'" in out and out.count("(") == 1 and error in ("OSError", "TimeoutError")


def test_it_has_no_rights_and_cannot_get_any(jailed):
    out, _ = run(jailed, "print(open('/proc/self/status').read())")
    assert "CapEff:\t0000000000000000" in out and "CapBnd:\t0000000000000000" in out and "NoNewPrivs:\t1" in out
    source = "import ctypes; print([ctypes.CDLL(None).unshare(flag) for flag in (0x10000000, 0x20000, 0x40000000)])"
    assert run(jailed, source)[0] == "[-1, -1, -1]\n"
    assert run(jailed, "print(ctypes.CDLL(None).mount(b'x', b'/tmp', b'tmpfs', 0, None))")[0] == "-1\n"


def test_it_chooses_the_kernels_of_linear_algebra_that_the_grader_chose(monkeypatch, tmp_path):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Prescott")
    monkeypatch.setenv("SECRET", "Prescott")
    source = "print([one for one in open('/proc/self/environ').read().split(chr(0)) if 'Prescott' in one])"
    with outside.Jail() as jail:
        assert run(jail.start(str(tmp_path)), source)[0] == "['OPENBLAS_CORETYPE=Prescott']\n"


USERS = """
import os, signal
os.kill(os.getppid(), 0)  # the first process of its own: the same user
print(open('/tmp/x', 'w').write('x'), open('/dev/shm/x', 'w').write('x'), len(open('/proc/self/environ').read()) > 0)
"""


@pytest.mark.parametrize("own", [True, False])
def test_where_root_grades_each_jail_has_a_user_number_of_its_own(own, monkeypatch, tmp_path):
    if not own:
        monkeypatch.setattr(own_user, "possible", lambda folders: False)
    elif os.geteuid() or not own_user.possible([]):
        pytest.skip("only root can give numbers away")
    with outside.Jail() as one, outside.Jail() as other:
        users = []
        for jail in (one, other):
            jailed = jail.start(tempfile.mkdtemp(dir=tmp_path))
            assert run(jailed, USERS) == ("1 1 True\n", None)
            users.append({os.stat(f"/proc/{pid}").st_uid for pid in family(jail.pid)[-3:]})
            jailed.end()
            assert alive(jail) == 3
        assert users == [{own_user.FIRST + one.pid}, {own_user.FIRST + other.pid}] if own else [{os.geteuid()}] * 2


def test_where_others_may_not_read_python_the_jail_keeps_the_number_of_the_user(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o700)
    assert not own_user.possible([str(tmp_path / "closed")])
    assert not own_user.possible([str(tmp_path / "missing")])


def test_it_cannot_change_the_settings_of_the_system(jailed):
    source = """
    import os
    for setting in ("kernel/core_pattern", "vm/drop_caches", "kernel/panic", "user/max_user_namespaces"):
        try:
            os.open("/proc/sys/" + setting, os.O_WRONLY)
            print("opened", setting)
        except OSError:
            pass
    """
    assert run(jailed, source) == ("", None)


def test_it_sees_no_other_process(jailed):
    out, _ = run(jailed, "import os; print(sorted(int(p) for p in os.listdir('/proc') if p.isdigit()))")
    assert max(json.loads(out)) < 20
    assert run(jailed, "os.kill(os.getppid(), 9)")[1] is None  # the first process of its own, which does not mind
    assert run(jailed, "print(1)")[0] == "1\n"


def ends(jailed, source, seconds=20):
    started = clock.now()
    with pytest.raises((outside.DiedError, outside.TooLongError)):
        run(jailed, source, seconds)
    jailed.end()
    return clock.now() - started


def alive(jail):
    return len(family(jail.process.pid))


@pytest.mark.parametrize(
    "source",
    [
        "import os; os._exit(0)",
        "import os; os.kill(os.getpid(), 9)",
        "import ctypes; ctypes.string_at(0)",
        # Every process handles the error: a cell that raised it would simply have ended.
        "import os, time\nwhile True:\n    try: os.fork()\n    except OSError: time.sleep(999)",
        "import os, time\nfor _ in range(99):\n    if not os.fork(): os.setsid(); time.sleep(999)\nos._exit(1)",
        "import os; os.closerange(3, 1000)",
    ],
    ids=["exit", "kill", "segfault", "fork-bomb", "daemons", "close-all"],
)
def test_it_ends_with_everything_that_it_started(jail, jailed, source):
    assert ends(jailed, source, seconds=6) < 60
    until = time.monotonic() + PATIENCE
    while alive(jail) > 3 and time.monotonic() < until:
        time.sleep(0.1)
    assert alive(jail) <= 3, "bubblewrap and the process that forks"
    folder = tempfile.mkdtemp(dir="/tmp")
    other = jail.start(folder)
    assert run(other, "print(2)")[0] == "2\n", "the next submission is served"
    other.end()
    os.rmdir(folder)


def test_an_endless_loop_that_swallows_everything_is_ended(jailed):
    source = "while True:\n    try:\n        while True: pass\n    except BaseException: pass"
    assert ends(jailed, source, seconds=1) < 15


def test_a_message_that_drips_is_cut_off_in_time(jailed):
    source = """
    import struct, time
    from jail import inside
    connection = inside.current.connection
    connection.sendall(struct.pack("!QI", 10**8, 10))
    while True:
        connection.sendall(b" ")
        time.sleep(0.05)
    """
    assert ends(jailed, source, seconds=2) < 15


def test_printing_without_end_is_cut_off_in_time(jailed):
    assert ends(jailed, "while True: print('x' * 9000)", seconds=2) < 5


def test_memory_is_limited_for_one_process_and_for_all(jailed):
    assert run(jailed, "x = bytearray(3 * 2**30)")[1] == "MemoryError"
    source = (
        "import os, time\nfor _ in range(8):\n    if not os.fork():\n        x = b'x' * 400_000_000; time.sleep(99)\n"
    )
    source += "time.sleep(99)"
    assert ends(jailed, source, seconds=30) < 29
    assert "too much memory" in jailed.why_ended


def test_a_full_disk_is_its_own(jailed):
    assert run(jailed, "open('big', 'wb').write(bytes(100 * 2**20))")[1] == "OSError"
    source = "for n in range(10**6):\n    open(f'/tmp/f{n}', 'w')"
    assert run(jailed, source)[1] == "OSError"


def test_what_a_network_has_carried_is_that_of_one_submission(jail, jailed):
    other = jail.start(jailed.folder, {})
    try:
        assert (jailed.carried(), other.carried()) == (0, 0)
        run(jailed, "import ranks; ranks.run(lambda r, n: None, 2)")
        assert jailed.carried() > 100 and other.carried() == 0
    finally:
        other.end()
    assert other.carried() is None


def test_control_groups_of_those_who_were_killed_are_removed_by_the_next():
    made = [control_groups.ControlGroups(10, 2**30)]
    if not made[0].groups:
        pytest.skip("control groups cannot be made here")
    mine = made[0].groups[0]
    gone = subprocess.Popen(["true"])
    gone.wait()
    left = mine.with_name(f"autograder-{gone.pid}-1")
    left.mkdir()
    control_groups.ControlGroups(10, 2**30).take_down()
    assert mine.exists() and not left.exists()
    made[0].take_down()
    assert not mine.exists()


@pytest.mark.parametrize("files", [("pids.max", "memory.max", "memory.swap.max", "cpu.weight"), ("pids.max",), ()])
def test_the_limits_that_hold_are_named(tmp_path, monkeypatch, files):
    """Plain files in the place of the system's."""
    (tmp_path / "cgroup.procs").touch()
    monkeypatch.setattr(control_groups, "ROOTS", dict.fromkeys(control_groups.ROOTS, (tmp_path,)))
    made = Path.mkdir

    def mkdir(path, *args, **kwargs):
        made(path, *args, **kwargs)
        for name in files:
            (path / name).touch()

    def rmdir(path):
        shutil.rmtree(path)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(Path, "rmdir", rmdir)
    mine = control_groups.ControlGroups(10, 2**30)
    kinds = {"pids.max": "processes", "memory.max": "memory", "memory.swap.max": "swap", "cpu.weight": "processors"}
    assert mine.holds == [kinds[name] for name in files]
    assert all((mine.groups[0] / name).read_text() for name in files)
    mine.take_down()
    line = control_groups.limits_here(10, 2**30)
    assert all((kind in line.split("only watched")[0]) == (name in files) for name, kind in kinds.items()), line


def test_a_request_that_is_too_large_or_broken_off_leaves_the_next_submission_a_whole_jail(monkeypatch):
    folder = tempfile.mkdtemp(dir="/tmp")
    with outside.Jail() as own:
        monkeypatch.setattr(wire, "MAX_MESSAGE", 2**20)
        with pytest.raises(ValueError, match="too large"):
            own.start(folder, {"much.bin": bytes(2**21)})
        monkeypatch.undo()
        jailed = own.start(folder, {"little.bin": b"12"})
        assert run(jailed, "print(open('little.bin').read())")[0] == "12\n"
        jailed.end()
        monkeypatch.setattr(wire, "receive", lambda *_: (_ for _ in ()).throw(TimeoutError))
        with pytest.raises(TimeoutError):
            own.start(folder)
        monkeypatch.undo()
        assert not own.is_alive(), "its late reply would be taken for that to the next request"
    os.rmdir(folder)
