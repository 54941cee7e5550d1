"""What crosses the wall of the jail, and what does not: files, processes, network, memory, code."""

import collections
import dataclasses
import json
import os
import platform
import re
import shutil
import socket
import struct
import subprocess
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from nbformat.v4 import new_code_cell, new_notebook

import ranks
from autograder.grading.jail import calls, fence, handles, outside, wire
from autograder.grading.jail import kernel as kernels

pytestmark = pytest.mark.jail


# --- the wire -------------------------------------------------------------------------------------------


def across(value, keep=None, classes=None):
    """`value` as the other side gets it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = threading.Thread(target=wire.send, args=(ours, value, keep))
        sender.start()
        theirs.settimeout(10)
        got = wire.receive(theirs, classes)
        sender.join()
    return got


@pytest.mark.parametrize(
    "value",
    [
        None, True, -7, 2**200, 1.5, "aé\ud7ff", b"\0\xff", [1, (2, [3])], {"a": {1: (2.5, None)}}, {1, 2},
        range(2, 9, 3),
        1 + 2j, torch.float16, torch.Size([2, 3]), collections.OrderedDict(b=1, a=2), collections.Counter("aab"),
        frozenset("x"), bytearray(b"y"), collections.deque([1, 2]), np.dtype("int16"),
    ],
)  # fmt: skip
def test_plain_data_crosses_as_it_is(value):
    got = across(value)
    assert type(got) is type(value) and got == value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_json_does_not_know_cross(value):
    assert repr(across(value)) == repr(value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3), np.arange(6).reshape(2, 3).T, np.zeros((0, 3)), np.float32(2.5), np.array("abc"),
        np.array([True, False]), np.arange(12.0)[::2], np.broadcast_to(np.ones(3), (2, 3)), np.arange(3.0)[::-1],
    ],
)  # fmt: skip
def test_arrays_cross_with_their_types_and_layouts(array):
    got = across(array)
    assert type(got) is type(array) and got.dtype == array.dtype and got.shape == array.shape
    assert np.array_equal(got, array)
    assert got.flags.f_contiguous == array.flags.f_contiguous or array.ndim < 2 or not array.flags.forc


def test_tensors_cross_with_dtype_layout_and_flags():
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        tensor = torch.arange(6).to(dtype).reshape(2, 3).t()
        got = across(tensor)
        assert torch.equal(got, tensor) and got.dtype == dtype and got.stride() == tensor.stride()
    assert across(torch.zeros(0, 4)).shape == (0, 4)
    assert across(torch.tensor(3.0)).item() == 3
    parameter = across(torch.nn.Parameter(torch.ones(2)))
    assert isinstance(parameter, torch.nn.Parameter) and parameter.requires_grad
    assert across(torch.ones(1, requires_grad=True)).requires_grad


class Odd(str):
    """A text that is equal to everything."""

    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


class Liar(int):
    def __index__(self):
        return 42

    def __pos__(self):
        return 42


class Everything:
    """Equal to everything, whatever it is compared with."""

    def __eq__(self, other):
        return True

    def __array__(self, *_, **__):
        raise RuntimeError


class Explosive:
    def __reduce__(self):
        return os.mkdir, ("/tmp/it-was-unpickled",)


def test_what_a_student_derives_from_plain_data_crosses_as_plain_data():
    assert type(across(Odd("a"))) is str and across(Odd("a")) != "b"
    assert across([Liar(3)]) == [3]
    array = np.ones(3).view(type("Array", (np.ndarray,), {"__eq__": lambda *_: True}))
    assert type(across(array)) is np.ndarray
    tensor = torch.ones(3).as_subclass(type("Tensor", (torch.Tensor,), {}))
    assert type(across(tensor)) is torch.Tensor


def test_other_objects_cross_as_a_name_and_a_number():
    kept = []
    got = across([Everything(), Explosive()], keep=lambda value: kept.append(value) or len(kept))
    assert got == [wire.Opaque("Everything", 1, __name__), wire.Opaque("Explosive", 2, __name__)]
    assert not os.path.exists("/tmp/it-was-unpickled")


def test_only_known_records_cross():
    message = ranks.ledger.Message(0, "send", 1, 8, 0.0)
    assert across(message, classes={wire.full_name(type(message)): type(message)}) == message
    with pytest.raises(wire.WireError):
        across(message)

    @dataclasses.dataclass
    class Mine:
        x: int

    assert isinstance(across(Mine(1)), wire.Opaque)


def test_what_is_nested_without_end_is_refused():
    loop = []
    loop.append(loop)
    with pytest.raises(ValueError, match="nested"):
        wire._Writer(None).encode(loop)


def raw(tree, data=b"", size=None):
    text = tree if isinstance(tree, bytes) else json.dumps(tree).encode()
    return struct.pack("!QI", len(text) + len(data) if size is None else size, len(text)) + text + data


@pytest.mark.parametrize(
    "message",
    [
        raw(["e", "os.system"]), raw([]), raw([1]), raw({"a": 1}), raw(b"{"), raw(b"[" * 100_000),
        raw(["b", [0, 5]], b"abc"), raw(["b", [-1, 1]], b"abc"), raw(["a", "O", [1], [0], [0, 8]], bytes(8)),
        raw(["a", "f8", [10**9], [0], [0, 8]], bytes(8)), raw(["a", "f8,f8", [1], [0], [0, 16]], bytes(16)),
        raw(["T", "no_such", [1], [0], [0, 4], [False, False]], bytes(4)),
        raw(["T", "float32", [-1], [0], [0, 4], [0, 0]], bytes(4)),
        raw(["D", "os.environ", []]), raw(["N", "autograder.Case", [1]]), raw(["d", [[["l", []], 1]], ""]),
        raw(["s", [["l", []]]]), raw(["i", "z"]), raw(["i", "1" * 20_000]), raw(["r", [0, 1, 0]]),
        raw(["y", "float99"]), raw(["r", [0, 10**10, 1]]),
        raw(["o", "x", "y", "z"]), raw(None, size=2**40), raw(["_", 1]), raw(["number", 1]),
    ],
)  # fmt: skip
def test_what_is_no_message_is_an_error_and_nothing_else(message):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(10)
        sender = threading.Thread(target=lambda: (ours.sendall(message), ours.close()))
        sender.start()
        with pytest.raises((wire.WireError, EOFError)):
            wire.receive(theirs)
        theirs.close()
        sender.join()


# --- the jail -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def jail():
    with outside.Jail(outside.Limits(memory=2**30, total=2 * 2**30, files=64 * 2**20, processes=150)) as jail:
        yield jail


@pytest.fixture
def inmate(jail):
    folder = tempfile.mkdtemp(dir="/tmp")
    inmate = jail.start(folder, {"data/numbers.txt": b"1 2"})
    yield inmate
    inmate.end()
    os.rmdir(folder)


def run(inmate, source, seconds=30):
    """Run a cell; what it printed, and the name of what it raised."""
    printed = []
    inmate.deadline = time.monotonic() + seconds
    reply = inmate.ask("cell", lambda kind, content: printed.append(str(content.get("text", ""))), source=source)
    return "".join(printed), (reply["raised"] or {}).get("name")


def test_it_sees_its_files_and_nothing_of_the_course(inmate):
    assert run(inmate, "print(open('data/numbers.txt').read())")[0] == "1 2\n"
    root = Path(outside.HERE).parents[2]
    for path in (
        root / "solutions",
        root / "autograder",
        root / "notebooks",
        root / "examples",
        "/etc/passwd",
        "/home",
    ):
        assert run(inmate, f"import os; print(os.path.exists({str(path)!r}))")[0] == "False\n", path
    assert run(inmate, "import autograder")[1] == "ModuleNotFoundError"
    mine = Path(tempfile.mkstemp(dir="/tmp")[1])
    assert run(inmate, f"print(os.path.exists({str(mine)!r}))")[0] == "False\n"
    mine.unlink()


def test_it_can_write_only_in_its_temporary_folder(inmate):
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
    assert run(inmate, source) == ("", None)


def test_nothing_of_one_submission_is_there_for_the_next(jail):
    for expected in ("0 False\n", "0 False\n"):
        folder = tempfile.mkdtemp(dir="/tmp")
        inmate = jail.start(folder)
        look = "import os; print(len(os.listdir('/dev/shm')), os.path.exists('/tmp/home/left'))"
        assert run(inmate, look)[0] == expected
        run(inmate, "open('/tmp/home/left', 'w'); open('/dev/shm/left', 'w'); import builtins; builtins.print = None")
        inmate.end()
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
def test_no_submission_can_leave_a_key_for_the_next(jail, inmate):
    other = jail.start(inmate.folder, {})
    try:
        run(inmate, KEYS.format(leave=True))
        assert run(other, KEYS.format(leave=False)) == ("False\nFalse\n", None)
        assert run(inmate, KEYS.format(leave=True)) == ("False\n", None)
    finally:
        other.end()


def test_it_has_loopback_and_no_network(inmate):
    assert run(inmate, "import ranks; print(list(ranks.run(lambda r, n: r, 2)))")[0] == "[0, 1]\n"
    source = "import socket; print(socket.if_nameindex()); socket.create_connection(('1.1.1.1', 53), timeout=3)"
    out, error = run(inmate, source)
    assert "'lo'" in out and out.count("(") == 1 and error in ("OSError", "TimeoutError")


def test_it_has_no_rights_and_cannot_get_any(inmate):
    out, _ = run(inmate, "print(open('/proc/self/status').read())")
    assert "CapEff:\t0000000000000000" in out and "CapBnd:\t0000000000000000" in out and "NoNewPrivs:\t1" in out
    source = "import ctypes; print([ctypes.CDLL(None).unshare(flag) for flag in (0x10000000, 0x20000, 0x40000000)])"
    assert run(inmate, source)[0] == "[-1, -1, -1]\n"
    assert run(inmate, "print(ctypes.CDLL(None).mount(b'x', b'/tmp', b'tmpfs', 0, None))")[0] == "-1\n"


def test_it_cannot_change_the_settings_of_the_system(inmate):
    source = """
    import os
    for setting in ("kernel/core_pattern", "vm/drop_caches", "kernel/panic", "user/max_user_namespaces"):
        try:
            os.open("/proc/sys/" + setting, os.O_WRONLY)
            print("opened", setting)
        except OSError:
            pass
    """
    assert run(inmate, source) == ("", None)


def test_it_sees_no_other_process(inmate):
    out, _ = run(inmate, "import os; print(sorted(int(p) for p in os.listdir('/proc') if p.isdigit()))")
    assert max(json.loads(out)) < 20
    assert run(inmate, "os.kill(os.getppid(), 9)")[1] is None  # the first process of its own, which does not mind
    assert run(inmate, "print(1)")[0] == "1\n"


def ends(inmate, source, seconds=20):
    started = time.monotonic()
    with pytest.raises((outside.DiedError, outside.TooLongError)):
        run(inmate, source, seconds)
    inmate.end()
    return time.monotonic() - started


def alive(jail):
    return len(outside._descendants(jail.process.pid))


@pytest.mark.parametrize(
    "source",
    [
        "import os; os._exit(0)",
        "import os; os.kill(os.getpid(), 9)",
        "import ctypes; ctypes.string_at(0)",
        "import os\nwhile True:\n    os.fork()",
        "import os, time\nfor _ in range(99):\n    if not os.fork(): os.setsid(); time.sleep(999)\nos._exit(1)",
        "import os; os.closerange(3, 1000)",
    ],
    ids=["exit", "kill", "segfault", "fork-bomb", "daemons", "close-all"],
)
def test_it_ends_with_everything_that_it_started(jail, inmate, source):
    assert ends(inmate, source, seconds=6) < 60
    until = time.monotonic() + 30
    while alive(jail) > 3 and time.monotonic() < until:
        time.sleep(0.1)
    assert alive(jail) <= 3, "bubblewrap and the process that forks"
    folder = tempfile.mkdtemp(dir="/tmp")
    other = jail.start(folder)
    assert run(other, "print(2)")[0] == "2\n", "the next submission is served"
    other.end()
    os.rmdir(folder)


def test_an_endless_loop_that_swallows_everything_is_ended(inmate):
    source = "while True:\n    try:\n        while True: pass\n    except BaseException: pass"
    assert ends(inmate, source, seconds=1) < 15


def test_a_message_that_drips_is_cut_off_in_time(inmate):
    source = """
    import struct, time
    from jail import inside
    connection = inside.current.connection
    connection.sendall(struct.pack("!QI", 10**8, 10))
    while True:
        connection.sendall(b" ")
        time.sleep(0.05)
    """
    assert ends(inmate, source, seconds=2) < 15


def test_printing_without_end_is_cut_off_in_time(inmate):
    assert ends(inmate, "while True: print('x' * 9000)", seconds=2) < 5


def test_memory_is_limited_for_one_process_and_for_all(inmate):
    assert run(inmate, "x = bytearray(3 * 2**30)")[1] == "MemoryError"
    source = (
        "import os, time\nfor _ in range(8):\n    if not os.fork():\n        x = b'x' * 400_000_000; time.sleep(99)\n"
    )
    source += "time.sleep(99)"
    assert ends(inmate, source, seconds=30) < 29
    assert "too much memory" in inmate.why_ended


def test_a_full_disk_is_its_own(inmate):
    assert run(inmate, "open('big', 'wb').write(bytes(100 * 2**20))")[1] == "OSError"
    source = "for n in range(10**6):\n    open(f'/tmp/f{n}', 'w')"
    assert run(inmate, source)[1] == "OSError"


# --- handles --------------------------------------------------------------------------------------------


def handle(inmate, source, name):
    assert run(inmate, source)[1] is None
    return handles.Handle(inmate, name)


def test_a_function_is_called_there_with_copies(inmate):
    function = handle(inmate, "def f(x, *, by=2):\n    return {'twice': x * by, 'at': [1, (2,)]}", "f")
    got = function(np.arange(3), by=4)
    assert np.array_equal(got["twice"], [0, 4, 8]) and got["at"] == [1, (2,)]
    assert function.__name__ == "f"


def test_what_it_changes_in_place_is_changed_here(inmate):
    function = handle(inmate, "def f(a, others):\n    a += 1\n    others[0].zero_()\n    return None", "f")
    array, tensor, untouched = np.ones(3), torch.ones(2), torch.ones(2)
    assert function(array, [tensor, untouched]) is None
    assert array.tolist() == [2, 2, 2] and tensor.tolist() == [0, 0] and untouched.tolist() == [1, 1]


def test_a_view_of_an_argument_is_one_here(inmate):
    function = handle(inmate, "def f(a):\n    return a[1:]", "f")
    array = np.zeros(3)
    function(array)[:] = 5
    assert array.tolist() == [0, 5, 5]
    tensor = torch.zeros(3)
    function(tensor).fill_(4)
    assert tensor.tolist() == [0, 4, 4]
    copy = handle(inmate, "def g(a):\n    return a[1:].copy()", "g")
    copy(array)[:] = 7
    assert array.tolist() == [0, 5, 5]


def test_what_it_raises_is_raised_here_with_its_place(inmate):
    source = "class Odd(ValueError): pass\ndef f(kind):\n    raise [ValueError, Odd, SystemExit, KeyError][kind]('why')"
    function = handle(inmate, source, "f")
    for kind, name, kin in ((0, "ValueError", ValueError), (1, "Odd", ValueError), (2, "SystemExit", Exception)):
        with pytest.raises(kin, match="why") as caught:
            function(kind)
        assert type(caught.value).__name__ == name
        assert "raise" in caught.value.frames[-1]
    with pytest.raises(Exception, match="why"):
        function(3)


def test_workers_that_mention_a_handle_run_there(inmate):
    function = handle(inmate, "def f(rank):\n    return (rank, __name__)", "f")

    def worker(rank, world_size, g):
        import os

        return g(rank), os.path.exists("/jail")

    with handles.in_jail():
        inmate.deadline = time.monotonic() + 30
        assert list(ranks.run(worker, 2, (function,), echo=False)) == [((0, "__main__"), True), ((1, "__main__"), True)]
        assert list(ranks.run(lambda rank, n: rank, 2, echo=False)) == [0, 1]
        assert not any(there for _, there in ranks.run(worker, 1, (lambda rank: rank,), echo=False))


def test_ranks_that_fail_or_hang_there_are_told_here(inmate):
    function = handle(inmate, "import torch.distributed as dist\ndef f(rank):\n    1 / rank", "f")
    with handles.in_jail(), pytest.raises(ranks.RankError, match="rank 0 raised ZeroDivisionError") as caught:
        ranks.run(lambda rank, n, g: g(rank), 2, (function,), echo=False)
    assert caught.value.rank == 0
    stuck = handle(inmate, "import torch\ndef h(rank):\n    dist.recv(torch.zeros(1), 1 - rank)", "h")
    with handles.in_jail(), pytest.raises(ranks.HangError) as hung:
        ranks.run(lambda rank, n, g: g(rank), 2, (stuck,), echo=False)
    assert len(hung.value.waits) == 2 and "recv" in str(hung.value)


def test_files_cross_as_plain_files(inmate):
    source = """
    import os
    def f(folder):
        os.symlink("/etc/hostname", folder + "/link")
        os.makedirs(folder + "/a")
        open(folder + "/a/b", "w").write(open(folder + "/in").read() * 2)
    """
    function = handle(inmate, source, "f")
    Path(inmate.folder, "in").write_text("xy")
    function(inmate.folder)
    assert Path(inmate.folder, "a", "b").read_text() == "xyxy"
    assert not Path(inmate.folder, "link").exists() and not Path(inmate.folder, "link").is_symlink()
    for name in ("in", "a/b"):
        Path(inmate.folder, name).unlink()
    Path(inmate.folder, "a").rmdir()


@pytest.mark.parametrize("name", ["../out", "/tmp/out", "a/../../out", "a\0b", "x" * 300])
def test_a_file_cannot_be_put_elsewhere(tmp_path, name):
    folder = tmp_path / "shared"
    folder.mkdir()
    with pytest.raises(wire.WireError):
        wire.write_folder(str(folder), {name: b"x"})
    assert [path.name for path in tmp_path.iterdir()] == ["shared"]


def test_an_object_stays_there_and_its_methods_are_called_there(inmate):
    source = "class Counter:\n    def __init__(self): self.n = 0\n    def add(self, k): self.n += k; return self.n"
    counter = handle(inmate, source, "Counter")()
    assert type(counter).__name__ == "Counter"
    assert (counter.add(2), counter.add(3), counter.n) == (2, 5, 5)
    with pytest.raises(AttributeError):
        _ = counter.nothing


# --- a grade cell and what it sees -----------------------------------------------------------------------

SUBMISSION = """
import torch, numpy as np
def views(a, b): return a, b[1:], a + b
def lists(l): l.sort(); l.append(99); return l
def dicts(d): d["new"] = 1; d["old"].pop(); return d["old"]
def replaces(xs): xs[0] = xs[0] * 2; return xs[1]
def tensors(t): return (t, t[1:], t.view(-1)[::2].clone()), [t.view(2, 2)]
"""

GRADE_CELLS = {
    "a returned view, also in a tuple, is a view of the argument here": """
        a, b = np.arange(4.0), np.arange(4.0)
        x, y, z = views(a, b)
        assert x is a and np.shares_memory(y, b) and not np.shares_memory(z, a)
        t = torch.arange(4.0)
        (u, v, w), [m] = tensors(t)
        same = [one.untyped_storage().data_ptr() == t.untyped_storage().data_ptr() for one in (v, m, w)]
        assert u is t and same == [True, True, False]
    """,
    "lists and dicts that are changed there are changed here": """
        l, d, xs = [3, 1, 2], {"old": [1, 2]}, [np.ones(2), np.zeros(2)]
        first, second = xs
        lists(l), dicts(d)
        assert l == [1, 2, 3, 99] and d == {"old": [1], "new": 1}
        assert replaces(xs) is second and xs[1] is second and xs[0] is not first and xs[0][0] == 2
    """,
    "call_inside runs there what does not cross": """
        from autograder.checking.stage import call_inside

        class Counts:
            def __init__(self, function):
                self.function, self.count = function, 0

            def go(self, x):
                self.count += 1
                return self.count, self.function([x])

        counts = call_inside(Counts, lists)
        assert (counts.go(1), counts.go(2)) == ((1, [1, 99]), (2, [2, 99]))
        assert call_inside(lambda: 5) == 5
    """,
    "the lesson's own setup counts, not the submission's": "assert np.pi > 3 and CONSTANT == 1",
}


@pytest.fixture(scope="module")
def kernel(jail):
    setup = new_code_cell("import numpy as np\nimport torch\nCONSTANT = 1", metadata={"tags": ["setup"]})
    kernel = kernels.JailedKernel(jail, new_notebook(cells=[setup]), {})
    kernel.start()
    assert kernel.run(SUBMISSION + "CONSTANT = 2\nnp.pi = 0", 20).status == "ok"
    yield kernel
    kernel.stop()


@pytest.mark.parametrize("cell", GRADE_CELLS)
def test_a_grade_cell_sees_what_it_would_without_a_jail(kernel, cell):
    reply = kernel.run_test(textwrap.dedent(GRADE_CELLS[cell]), 20)
    assert (reply.status, reply.error) == ("ok", ("", ""))


def test_a_grade_cell_that_fails_says_why(kernel):
    reply = kernel.run_test("assert views(np.ones(1), np.ones(1))[0] == 2, 'one is not two'", 20)
    assert (reply.status, reply.error) == ("error", ("AssertionError", "one is not two"))
    assert kernel.run_test("nothing_of_that_name(1)", 20).error[0] == "NameError"


def test_a_grade_cell_has_its_time_limit(kernel):
    assert kernel.run_test("while True: pass", 0.5).status == "timeout"


ELSEWHERE = """
from autograder.checking.stage import apart, run_ranks
assert [remember(1), remember(2)] == [[1], [1, 2]]
other = apart(remember)
assert other(3) == [3], "each process has memory of its own"
assert list(run_ranks(worker, 2, (other,))) == [[3, 0], [3, 1]], "ranks are forked from there"
assert remember(4) == [3, 4], "the other process has taken the place of the first"
assert apart(worker) is worker, "what is not the submission's stays what it is"
"""


def test_a_grade_cell_can_have_a_second_process_that_has_run_the_same_cells(jail):
    kernel = kernels.JailedKernel(jail, new_notebook(cells=[]), {"n.txt": b"4"})
    kernel.start()
    folders = [Path(kernel.inmate.folder)]
    try:
        kernel.run("import time; time.sleep(0.5); kept = []\ndef remember(x): kept.append(x); return kept", 20)
        worker = "def worker(rank, n, remember): return remember(rank)\n"
        assert kernel.run_test(worker + ELSEWHERE, 10).error == ("", "")
        folders.append(Path(kernel.inmate.folder))
        kernel.run("later = int(open('n.txt').read())\ndef read(x): return later + x", 20)
        late = "from autograder.checking.stage import apart\nassert apart(read)(1) == 5, 'later cells have run, too'"
        assert kernel.run_test(late, 10).error == ("", "")
        assert all(folder.exists() for folder in folders) and folders[0] != folders[1]
    finally:
        kernel.stop()
    assert not any(folder.exists() for folder in folders)


def test_the_first_process_has_ended_before_the_second_starts(jail):
    before = set(outside._descendants(jail.pid))  # another test's submission may still be there
    kernel = kernels.JailedKernel(jail, new_notebook(cells=[]), {})
    kernel.start()
    first, seen = kernel.running, []
    begin = jail.start

    def start(*args):
        seen.append(outside._descendants(jail.pid))
        return begin(*args)

    try:
        kernel.run("import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\ndef f(x): return x", 20)
        jail.start = start
        assert (
            kernel.run_test("from autograder.checking.stage import apart\nassert apart(f)(1) == 1", 20).status == "ok"
        )
        assert len(seen) == 1 and set(seen[0]) <= before, "nothing of the first process is left"
        assert kernel.running is first.latest is not first
    finally:
        del jail.start
        kernel.stop()


def test_cells_that_run_again_take_nothing_of_the_time_of_a_test(jail):
    kernel = kernels.JailedKernel(jail, new_notebook(cells=[]), {})
    kernel.start()
    try:
        kernel.run("import time; time.sleep(3)\ndef f(x): return x", 20)
        cell = "from autograder.checking.stage import apart\nimport time\nassert apart(f)(1) == 1\ntime.sleep({})"
        assert kernel.run_test(cell.format(0), 2.5).error == ("", "")
        assert kernel.run_test(cell.format(4), 1).status == "timeout"
    finally:
        kernel.stop()


def test_a_second_process_that_dies_ends_the_test(jail):
    kernel = kernels.JailedKernel(jail, new_notebook(cells=[]), {})
    kernel.start()
    try:
        kernel.run("import os\ndef f(x): os._exit(1)", 20)
        assert kernel.run_test("from autograder.checking.stage import apart\napart(f)(1)", 20).status == "died"
    finally:
        kernel.stop()


# Workers of two ranks that should each send 5 MB to the other: what they send, and what they write down.
SENDERS = """
import torch, torch.distributed as dist

def exchange(rank, world_size):
    x = torch.ones(5 * 2**18)
    work = dist.isend(x, 1 - rank)
    dist.recv(torch.empty_like(x), 1 - rank)
    work.wait()

def honest(rank, world_size):
    dist.new_group([0, 1])  # is no message, and costs some bytes
    exchange(rank, world_size)

def recorder():
    cells = [cell.cell_contents for cell in dist.send.__closure__]
    return next(one for one in cells if type(one).__name__ == "_Recorder")

def silent(rank, world_size):
    with recorder():
        exchange(rank, world_size)

def invented(rank, world_size):
    number = recorder().call("send", True, peer=1 - rank, bytes=5 * 2**20, dtype="torch.float32", tag=0)
    recorder().write(e="done", i=number)
"""


def test_the_ledger_is_compared_with_what_the_network_has_carried(kernel):
    assert kernel.run(SENDERS, 20).status == "ok"
    tried = "from autograder.checking.stage import run_ranks\nrun_ranks({}, 2, (), recorded=True)"
    assert kernel.run_test(tried.format("honest"), 20).error == ("", "")
    for worker, sent in (("silent", 0), ("invented", 10 * 2**20)):
        kind, text = kernel.run_test(tried.format(worker), 20).error
        assert kind == "CheckFailed" and f"the ledger says that the ranks sent {sent} bytes" in text


def test_what_a_network_has_carried_is_that_of_one_submission(jail, inmate):
    other = jail.start(inmate.folder, {})
    try:
        assert (inmate.carried(), other.carried()) == (0, 0)
        run(inmate, "import ranks; ranks.run(lambda r, n: None, 2)")
        assert inmate.carried() > 100 and other.carried() == 0
    finally:
        other.end()
    assert other.carried() is None


def test_control_groups_of_those_who_were_killed_are_removed_by_the_next():
    fences = [fence.Fence(10, 2**30)]
    if not fences[0].groups:
        pytest.skip("control groups cannot be made here")
    mine = fences[0].groups[0]
    gone = subprocess.Popen(["true"])
    gone.wait()
    left = mine.with_name(f"autograder-{gone.pid}-1")
    left.mkdir()
    fence.Fence(10, 2**30).take_down()
    assert mine.exists() and not left.exists()
    fences[0].take_down()
    assert not mine.exists()


@pytest.mark.parametrize("files", [("pids.max", "memory.max", "memory.swap.max"), ("pids.max",), ()])
def test_the_limits_that_hold_are_named(tmp_path, monkeypatch, files):
    """Plain files in the place of the system's."""
    (tmp_path / "cgroup.procs").touch()
    monkeypatch.setattr(fence, "ROOTS", {"processes": (tmp_path,), "memory": (tmp_path,)})
    made = Path.mkdir

    def mkdir(path, *args, **kwargs):
        made(path, *args, **kwargs)
        for name in files:
            (path / name).touch()

    def rmdir(path):
        shutil.rmtree(path)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(Path, "rmdir", rmdir)
    mine = fence.Fence(10, 2**30)
    kinds = {"pids.max": "processes", "memory.max": "memory", "memory.swap.max": "swap"}
    assert mine.holds == [kinds[name] for name in files]
    assert all((mine.groups[0] / name).read_text() for name in files)
    mine.take_down()
    line = fence.limits_here(10, 2**30)
    assert all((kind in line.split("only watched")[0]) == (name in files) for name, kind in kinds.items()), line


# --- the calls of the system ----------------------------------------------------------------------------

REFUSED = """
import ctypes, fcntl, os, socket, struct
libc = ctypes.CDLL(None, use_errno=True)

def refused(call, *args):
    try:
        call(*args)
        return False
    except OSError as error:
        return error.errno in (1, 38)

def direct(number, *args):
    return libc.syscall(number, *args) == -1 and ctypes.get_errno() in (1, 38)

def library(name, *args):
    return getattr(libc, name)(*args) == -1 and ctypes.get_errno() in (1, 38)

here = open("/tmp/own", "w+b")
shared = open(os.__file__, "rb")
lock = struct.pack("hhlli", 0, 0, 0, 1, 0)
print([name for name, found in {
    "lock": refused(fcntl.fcntl, shared, fcntl.F_SETLK, lock),
    "lock seen": refused(fcntl.fcntl, shared, fcntl.F_GETLK, lock),
    "lock by file": refused(fcntl.fcntl, shared, 37, lock),
    "lease": refused(fcntl.fcntl, shared, fcntl.F_SETLEASE, fcntl.F_RDLCK),
    "notify": refused(fcntl.fcntl, os.open("/usr", os.O_RDONLY), fcntl.F_NOTIFY, 1),
    "memfd": refused(os.memfd_create, "x"),
    "shm": library("shmget", 0, 1 << 20, 0o1600),
    "sem": library("semget", 0, 1, 0o1600),
    "msg": library("msgget", 0, 0o1600),
    "inotify": library("inotify_init1", 0),
    "mincore": library("mincore", 0, 4096, None),
    "ptrace": library("ptrace", 0, 0, 0, 0),
    "vsock": refused(socket.socket, 40, socket.SOCK_STREAM),
    "fadvise": refused(os.posix_fadvise, here.fileno(), 0, 0, 4),
    "uring": direct(425, 1, bytes(120)),
    "bpf": direct(BPF, 0, bytes(120), 120),
    "perf": direct(PERF, bytes(120), 0, -1, -1, 0),
    "read of a process": direct(READV, os.getpid(), bytes(64), 1, bytes(64), 1, 0),
    "x32": direct(0x40000000 + 39),
}.items() if not found])
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="the numbers of the calls")
def test_calls_that_reach_beyond_a_submission_are_refused(inmate):
    intel = {"BPF": 321, "PERF": 298, "READV": 310}
    numbers = intel if platform.machine() == "x86_64" else {"BPF": 280, "PERF": 241, "READV": 270}
    source = REFUSED
    for name, number in numbers.items():
        source = source.replace(f"direct({name}", f"direct({number}")
    assert run(inmate, source) == ("[]\n", None)


def test_the_numbers_of_the_calls_are_those_of_the_system():
    header = Path(f"/usr/include/{platform.machine()}-linux-gnu/asm/unistd_64.h")
    if platform.machine() != "x86_64" or not header.exists():
        pytest.skip("the system's own list is not installed")
    known = dict(re.findall(r"#define __NR_(\w+) (\d+)", header.read_text()))
    mine = calls.numbers("x86_64")
    assert {name for name in mine if name in known and int(known[name]) != mine[name]} == set()
    assert len(mine.keys() & known.keys()) > 190
    generic = Path("/usr/include/asm-generic/unistd.h").read_text()
    known = dict(re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)", generic)) | {"newfstatat": 79}
    mine = calls.numbers("aarch64")
    assert {name for name in mine if name in known and int(known[name]) != mine[name]} == set()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_allows_what_is_on_the_list_and_nothing_else(machine):
    def verdict(number, arguments=(0,) * 6, kind=calls.MACHINES[machine][0]):
        data = struct.pack("=IIQ6Q", number, kind, 0, *arguments)
        steps, place, loaded = calls.program(machine), 0, 0
        while True:
            code, yes, no, value = steps[place]
            place += 1
            if code == 0x20:
                loaded = struct.unpack_from("=I", data, value)[0]
            elif code == 0x06:
                return value == 0x7FFF0000
            else:
                holds = {0x15: loaded == value, 0x25: loaded > value, 0x35: loaded >= value}[code]
                place += yes if holds else no

    allowed = calls.numbers(machine)
    special = {allowed["fcntl"], allowed["socket"]}
    for number in range(600):
        assert number in special or verdict(number) == (number in allowed.values()), number
    assert not verdict(0x40000000 + allowed["read"]) and not verdict(allowed["read"], kind=0x40000003)
    commands = [command for command in range(1100) if verdict(allowed["fcntl"], (3, command, 0, 0, 0, 0))]
    assert commands == [0, 1, 2, 3, 4, 1030, 1031, 1032]
    assert [family for family in range(60) if verdict(allowed["socket"], (family, 1, 0, 0, 0, 0))] == [1, 2, 10, 16]
