"""A grade cell runs outside the jail and calls what the submission defines inside."""

import os
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
from nbformat.v4 import new_code_cell, new_notebook

from autograder.grade.jail import kernel as kernels
from autograder.lesson import notebook
from ranks.stopwatch import family

pytestmark = pytest.mark.jail


SUBMISSION = """
import torch, numpy as np
def views(a, b): return a, b[1:], a + b
def lists(l): l.sort(); l.append(99); return l
def dicts(d): d["new"] = 1; d["old"].pop(); return d["old"]
def replaces(xs): xs[0] = xs[0] * 2; return xs[1]
def tensors(t): return (t, t[1:], t.view(-1)[::2].clone()), [t.view(2, 2)]
def third(n): return n // 3 if n % 3 == 0 else 1 / 0
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
        from autograder.checks.stage import call_inside

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
    "calls that are made at once give what they give one by one": """
        from autograder.checks.stage import called_at_once

        answered = called_at_once(third, [(3,), (6,), (7,), (9,)])
        assert [answered(3), answered(6)] == [1, 2]
        try:
            answered(7)
        except ZeroDivisionError:
            assert answered(9) == 3
        else:
            assert False
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
from autograder.checks.stage import apart, run_ranks
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
    folders = [Path(kernel.jailed.folder)]
    try:
        kernel.run("import time; time.sleep(0.5); kept = []\ndef remember(x): kept.append(x); return kept", 20)
        worker = "def worker(rank, n, remember): return remember(rank)\n"
        assert kernel.run_test(worker + ELSEWHERE, 10).error == ("", "")
        folders.append(Path(kernel.jailed.folder))
        kernel.run("later = int(open('n.txt').read())\ndef read(x): return later + x", 20)
        late = "from autograder.checks.stage import apart\nassert apart(read)(1) == 5, 'later cells have run, too'"
        assert kernel.run_test(late, 10).error == ("", "")
        assert all(folder.exists() for folder in folders) and folders[0] != folders[1]
    finally:
        kernel.stop()
    assert not any(folder.exists() for folder in folders)


def test_the_first_process_has_ended_before_the_second_starts(jail):
    before = set(family(jail.pid))  # another test's submission may still be there
    kernel = kernels.JailedKernel(jail, new_notebook(cells=[]), {})
    kernel.start()
    first, seen = kernel.running, []
    begin = jail.start

    def start(*args):
        seen.append(family(jail.pid))
        return begin(*args)

    try:
        kernel.run("import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\ndef f(x): return x", 20)
        jail.start = start
        assert kernel.run_test("from autograder.checks.stage import apart\nassert apart(f)(1) == 1", 20).status == "ok"
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
        cell = "from autograder.checks.stage import apart\nimport time\nassert apart(f)(1) == 1\ntime.sleep({})"
        assert kernel.run_test(cell.format(0), 2.5).error == ("", "")
        assert kernel.run_test(cell.format(4), 1).status == "timeout"
    finally:
        kernel.stop()


def test_a_second_process_that_dies_ends_the_test(jail):
    kernel = kernels.JailedKernel(jail, new_notebook(cells=[]), {})
    kernel.start()
    try:
        kernel.run("import os\ndef f(x): os._exit(1)", 20)
        assert kernel.run_test("from autograder.checks.stage import apart\napart(f)(1)", 20).status == "died"
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
    tried = "from autograder.checks.stage import run_ranks\nrun_ranks({}, 2, (), recorded=True)"
    assert kernel.run_test(tried.format("honest"), 20).error == ("", "")
    for worker, sent in (("silent", 0), ("invented", 10 * 2**20)):
        kind, text = kernel.run_test(tried.format(worker), 20).error
        assert kind == "CheckFailed" and f"the ledger says that the ranks sent {sent} bytes" in text


def test_a_submission_that_cannot_start_leaves_no_folder(monkeypatch):
    def refuse(folder, files):
        raise ValueError("too large")

    before = set(Path("/tmp").glob("grade-*"))
    kernel = kernels.JailedKernel(SimpleNamespace(start=refuse), new_notebook(), {})
    with pytest.raises(ValueError, match="too large"):
        kernel.start()
    assert set(Path("/tmp").glob("grade-*")) <= before


def test_folders_of_graders_that_were_killed_are_removed_after_some_hours():
    gone, young, mine = (Path(f"/tmp/grade-{name}-test") for name in (2**22 + 1, 2**22 + 2, os.getpid()))
    for folder in (gone, young, mine):
        folder.mkdir()
    for folder in (gone, mine):
        os.utime(folder, (0, 0))
    kernels._sweep(-1)
    assert [folder.exists() for folder in (gone, young, mine)] == [False, True, True]
    for folder in (young, mine):
        folder.rmdir()


def test_a_large_package_is_loaded_for_the_lessons_that_import_it():
    assert kernels.large_modules(notebook.read("03_step")) == frozenset()
    assert kernels.large_modules(notebook.read("04_accumulation")) == {"sklearn.datasets"}
    loaded = "import sys; assert ('sklearn.datasets' in sys.modules) is "
    for lesson, expected in (("03_step", False), ("04_accumulation", True)):
        with kernels.kernels_for(notebook.read(lesson), {}) as new_kernel:
            kernel = new_kernel()
            kernel.start()
            assert kernel.run(f"{loaded}{expected}", 60).status == "ok"
            kernel.stop()
