"""What `ranks.run` promises: by value, fast, isolated, nothing lost, nothing left, and errors for people."""

from __future__ import annotations

import builtins
import fnmatch
import functools
import hashlib
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
import warnings
import weakref
from pathlib import Path
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.profiler import record_function

import ranks
from ranks import Ledger, Message, Span, processes, record, sending, source, timeline

pytestmark = pytest.mark.usefixtures("no_leftovers")
forked = pytest.mark.skipif(not processes.can_fork(), reason="is about the fork server, or about a fork")


def ring_step(rank, world_size, numel):
    """Pass a vector on to the right neighbor and add what comes from the left."""
    mine, got = torch.full((numel,), float(rank)), torch.empty(numel)
    work = dist.isend(mine, dst=(rank + 1) % world_size)
    dist.recv(got, src=(rank - 1) % world_size)
    work.wait()
    return mine + got


def program(folder, text, **environment):
    """Run this text as a script in this folder."""
    (folder / "script.py").write_text(text)
    environment = {**os.environ, **environment}
    command = [sys.executable, "script.py"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 8])
def test_results_come_in_rank_order(world_size):
    results = ranks.run(all_reduced_rank, world_size=world_size)
    assert results == [(rank, sum(range(world_size))) for rank in range(world_size)]


def all_reduced_rank(rank, world_size):
    x = torch.tensor([rank])
    dist.all_reduce(x)
    return rank, x.item()


#: What Python imports first in a process that shall take its PyTorch for one before 2.13.
OLDER_TORCH = """
import torch.distributed as dist
from torch.distributed import distributed_c10d

for new, old in {renamed}.items():
    for module in (dist, distributed_c10d):
        if hasattr(module, new):
            setattr(module, old, getattr(module, new))
            delattr(module, new)
"""


def test_a_rank_with_an_older_torch_has_the_collectives_under_their_new_names(tmp_path):
    """Also before its worker is there, whose module may import them."""
    (tmp_path / "sitecustomize.py").write_text(OLDER_TORCH.format(renamed=record.RENAMED))
    (tmp_path / "new_names.py").write_text(
        "import torch\nfrom torch.distributed import all_gather_single, reduce_scatter_single\n\n"
        "def worker(rank, world_size):\n"
        "    part, whole = torch.zeros(1), torch.zeros(2)\n"
        "    reduce_scatter_single(part, torch.tensor([1.0, 2.0]))\n"
        "    all_gather_single(whole, part)\n"
        "    return whole.tolist()\n"
    )
    folders = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = program(
        tmp_path,
        "import sys, torch.distributed as dist\nassert not hasattr(dist, 'all_gather_single')\n"
        "import ranks\n"
        "def worker(rank, world_size):\n    import new_names\n    return new_names.worker(rank, world_size)\n"
        "results = ranks.run(worker, world_size=2)\n"
        "print(results, sorted((m.call, m.bytes) for m in results.ledger))\n",
        PYTHONPATH=folders,
    )
    calls = [("all_gather_single", 4)] * 2 + [("reduce_scatter_single", 8)] * 2
    assert done.stdout == f"[[2.0, 4.0], [2.0, 4.0]] {calls}\n", done.stderr


class IPython7:
    """What `ranks` asks of IPython's shell, as version 7 has it: file names are made of the cells' texts."""

    def __init__(self, *cells: str):
        texts = ["", *(cell.rstrip("\n") for cell in cells)]
        self.compile = self
        self.history_manager = SimpleNamespace(input_hist_raw=texts, input_hist_parsed=texts)

    def get_code_name(self, raw_code, transformed_code, number):
        return f"/tmp/ipykernel_7/{hashlib.md5(raw_code.encode()).hexdigest()}.py"


def test_a_cell_has_its_number_in_ipython_7_too(monkeypatch):
    cells = ["import ranks", "def worker(rank, world_size):\n    wait()\n", "x = 1", "x = 1"]
    shell = IPython7(*cells)
    names = [shell.get_code_name(cell, cell, 0) for cell in cells]
    monkeypatch.setattr(builtins, "get_ipython", lambda: shell, raising=False)
    assert [source.name_of(name) for name in names] == ["Cell In[1]", "Cell In[2]", "Cell In[4]", "Cell In[4]"]
    assert source.name_of("/tmp/ipykernel_7/another.py") == "another.py"
    assert source.place(names[1], 2) == "Cell In[2], line 2"


def test_a_folder_of_the_users_that_is_called_ranks_is_not_foreign():
    assert source.foreign(processes.__file__) and source.foreign("/elsewhere/ranks/launch.py")
    assert not source.foreign("/home/ada/ranks/train.py")


def test_another_shell_has_no_cells(monkeypatch):
    monkeypatch.setattr(builtins, "get_ipython", lambda: SimpleNamespace(compile=compile), raising=False)
    assert source.name_of("/tmp/ipykernel_7/another.py") == "another.py"


def test_the_time_allowed_begins_when_the_ranks_have_started(tmp_path):
    """A fork server that has to import something slow takes nothing off the run's own time."""
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(8)\n")
    done = program(
        tmp_path,
        "import ranks\nfrom ranks import processes\n\n"
        "processes.PRELOAD.add('slow_to_import')\n"
        "if __name__ == '__main__':\n"
        "    print(ranks.run(lambda rank, world_size: rank, 2, timeout=6, echo=False))\n",
    )
    assert done.stdout == "[0, 1]\n", done.stderr[-500:]


def test_functions_travel_by_value():
    offset = 7
    space = {"__name__": "__main__"}
    exec("def helper(x):\n    return x * 10\n\ndef worker(rank, world_size):\n    return helper(rank)", space)
    assert ranks.run(space["worker"], world_size=3) == [0, 10, 20]
    assert ranks.run(lambda rank, world_size: rank + offset, world_size=2) == [7, 8]


def test_a_second_wait_for_a_message_raises_where_gloo_would_hang():
    def waits_twice(rank, world_size, collective):
        x = torch.ones(1)
        work = dist.all_reduce(x, async_op=True) if collective else dist.isend(x, 1) if rank == 0 else dist.irecv(x, 0)
        work.wait()
        work.wait()

    with pytest.raises(ranks.RankError, match=r"wait\(\) was called twice on the same i(send|recv)"):
        ranks.run(waits_twice, world_size=2, args=(False,), timeout=20)
    assert ranks.run(waits_twice, world_size=2, args=(True,)) == [None, None]


CACHED = """
import functools

@functools.cache
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

@functools.lru_cache(maxsize=3, typed=True)
def double(x):
    return 2 * x

def worker(rank, world_size, other):
    found = fibonacci(20 + rank), double(rank), other(rank)
    return *found, fibonacci.cache_info().currsize, double.cache_parameters()
"""


def test_cached_functions_travel_without_their_results():
    space = {"__name__": "__main__"}
    exec(CACHED, space)
    assert space["fibonacci"](90) > 0
    inner = functools.cache(lambda x: x + 1)  # it is defined in a function
    expected = [(6765, 0, 1, 21, {"maxsize": 3, "typed": True}), (10946, 2, 2, 22, {"maxsize": 3, "typed": True})]
    assert ranks.run(space["worker"], world_size=2, args=(inner,)) == expected
    importable = fnmatch._compile_pattern
    assert pickle.loads(sending.packed(importable)) is importable, "what can be imported goes by its name"


def test_code_keeps_the_name_of_its_file_whatever_cloudpickle_does(monkeypatch):
    """cloudpickle 3.1.3 sends `<dynamic-code>` instead: then no hang and no error would say where it is."""
    theirs = cloudpickle.Pickler.dispatch_table

    def without_file(code, reduced=theirs[types.CodeType]):
        return reduced(code.replace(co_filename="<dynamic-code>"))

    monkeypatch.setitem(theirs, types.CodeType, without_file)
    monkeypatch.setattr(sending, "pickler", sending.pickler.__wrapped__)
    space = {"__name__": "__main__"}
    exec(compile("def worker():\n    def inner():\n        pass\n    return inner\n", "cell.py", "exec"), space)
    worker = pickle.loads(sending.packed(space["worker"]))
    assert [worker.__code__.co_filename, worker().__code__.co_filename] == ["cell.py"] * 2


def test_results_are_whole_however_large():
    sent = ranks.run(lambda rank, world_size: torch.arange(2_000_000) + rank, world_size=2)
    assert all(torch.equal(x, torch.arange(2_000_000) + rank) for rank, x in enumerate(sent))


def test_the_ledger_has_every_message():
    ledger = ranks.run(ring_step, world_size=4, args=(6,)).ledger
    assert ledger.bytes_sent() == [24] * 4 and ledger.messages_sent() == [1] * 4
    assert sorted((m.rank, m.call, m.peer, m.bytes) for m in ledger) == sorted(
        row for r in range(4) for row in [(r, "isend", (r + 1) % 4, 24), (r, "recv", (r - 1) % 4, 24)]
    )
    assert all(0 <= m.start <= m.end for m in ledger) and min(m.start for m in ledger) == 0
    assert {Path(m.file).name for m in ledger} == {Path(__file__).name} and all(m.line for m in ledger)
    assert ledger.rounds() == 1


def test_a_printed_ledger_is_a_table():
    calls = [Message(0, "send", 1, 8, 0.001, 0.0025, line=3), Message(1, "reduce_scatter_single", None, 16, 0.002)]
    assert str(Ledger(calls)).splitlines() == [
        "rank  call                   peer     bytes  start ms    end ms  line",
        "   0  send                      1         8      1.00      2.50  3",
        "   1  reduce_scatter_single              16      2.00            0",
    ]


def chain(rank, world_size):
    x = torch.zeros(2)
    if rank:
        dist.recv(x, src=rank - 1)
    if rank < world_size - 1:
        dist.send(x, dst=rank + 1)


def fan_out(rank, world_size):
    x = torch.zeros(2)
    if rank:
        dist.recv(x, src=0)
    else:
        for other in range(1, world_size):
            dist.send(x, dst=other)


def tree(rank, world_size):
    x, reach = torch.zeros(2), 1
    while reach < world_size:
        if rank < reach and rank + reach < world_size:
            dist.send(x, dst=rank + reach)
        elif reach <= rank < 2 * reach:
            dist.recv(x, src=rank - reach)
        reach *= 2


@pytest.mark.parametrize(("worker", "rounds"), [(chain, 7), (fan_out, 7), (tree, 3)])
def test_rounds_count_the_longest_dependence(worker, rounds):
    assert ranks.run(worker, world_size=8).ledger.rounds() == rounds


def test_collectives_are_in_the_ledger_once():
    def many_collectives(rank, world_size):
        x = torch.ones(4)
        dist.all_reduce(x)
        dist.broadcast(x, src=1)
        parts = [torch.empty(4) for _ in range(world_size)]
        dist.all_gather(parts, x)
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        group = dist.new_group([0, 1])
        if rank < 2:
            dist.all_reduce(x, group=group)
        objects = [None] * world_size
        dist.all_gather_object(objects, rank)
        dist.all_reduce_coalesced([x, torch.ones(2)])
        return objects

    results = ranks.run(many_collectives, world_size=3)
    assert results == [[0, 1, 2]] * 3
    calls = [m.call for m in results.ledger.of(0)]
    assert calls.pop() == "all_reduce_coalesced" and results.ledger.of(0)[-1].bytes == 24
    assert calls == ["all_reduce", "broadcast", "all_gather", "all_reduce", "all_reduce", "all_gather_object"]
    assert [m.group for m in results.ledger.of(0)].count((0, 1)) == 1
    assert all(m.end is not None for m in results.ledger)


def test_what_gloo_prints_for_each_group_is_left_out(capsys):
    """PyTorch 2.8's does."""

    greeting = b"[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1\n"

    def greeted(rank, world_size):
        os.write(1, b"before\n" + greeting)
        print("after")

    results = ranks.run(greeted, world_size=1)
    assert results.stdout == ["before\nafter\n"] and capsys.readouterr().out == "[rank 0] before\n[rank 0] after\n"


def test_output_is_captured_and_shown_with_its_rank(capsys):
    def prints(rank, world_size):
        print(f"line one of {rank}")
        print("to stderr", file=sys.stderr)
        os.system("echo from a child process")

    results = ranks.run(prints, world_size=2)
    assert results.stdout[1].splitlines() == ["line one of 1", "to stderr", "from a child process"]
    assert "[rank 1] line one of 1" in capsys.readouterr().out
    ranks.run(prints, world_size=2, echo=False)
    assert capsys.readouterr().out == ""


def test_a_failing_rank_is_reported_with_its_line():
    def fails_at_home(rank, world_size):
        if rank == 1:
            return {}["no such key"]
        dist.barrier()

    begin = time.monotonic()
    with pytest.raises(ranks.RankError) as caught:
        ranks.run(fails_at_home, world_size=4, timeout=900)
    assert time.monotonic() - begin < 300, "the others are ended; the timeout would be 900 s"
    error = caught.value
    assert (error.rank, error.type_name) == (1, "KeyError")
    assert 'return {}["no such key"]' in error.traceback and "ranks/rank.py" not in error.traceback


def test_the_cause_of_an_error_is_reported_too():
    def fails_because(rank, world_size):
        try:
            int("four")
        except ValueError as error:
            raise RuntimeError("no number of heads") from error

    with pytest.raises(ranks.RankError, match=r"rank [01] raised RuntimeError: no number of heads") as caught:
        ranks.run(fails_because, world_size=2)
    assert "invalid literal for int" in caught.value.traceback


@forked
def test_daemons_of_a_rank_are_ended():
    def leaves_a_daemon(rank, world_size):
        subprocess.Popen(["sleep", "300"], start_new_session=True)
        if rank == 0:
            raise ValueError("end here")
        time.sleep(900)

    with pytest.raises(ranks.RankError):
        ranks.run(leaves_a_daemon, world_size=2)
    assert "sleep 300" not in subprocess.run(["ps", "-A", "-o", "args="], capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"world_size": 0}, "world_size must be a whole number of ranks, at least 1, got 0"),
        ({"world_size": 2.0}, "world_size must be a whole number of ranks, .* got 2.0"),
        ({"world_size": True}, "world_size must be a whole number of ranks, .* got True"),
        ({"world_size": 1000}, "at most 128"),
        ({"timeout": 0}, "timeout must be a number of seconds above 0"),
        ({"timeout": None}, "timeout must be a number of seconds above 0, at most 1,000,000, got None"),
        ({"timeout": 1e15}, "timeout must be a number of seconds above 0, at most 1,000,000"),
        ({"timeout": float("nan")}, "timeout must be a number of seconds"),
        ({"seed": None}, "seed must be a whole number from 0"),
        ({"seed": 2**70}, "seed must be a whole number from 0"),
        ({"args": 5}, r"write args=\(x,\)"),
        ({"worker": 5}, "worker must be a function"),
        ({"args": (threading.Lock(),)}, "cannot be sent to the ranks"),
    ],
)
def test_arguments_that_cannot_work_are_reported_in_one_line(arguments, says):
    arguments = {"worker": all_reduced_rank, "world_size": 2, **arguments}
    with pytest.raises(ValueError, match=says) as caught:
        ranks.run(**arguments)
    assert "\n" not in str(caught.value)


def test_a_result_that_cannot_be_sent_is_reported_in_one_line():
    with pytest.raises(ranks.RankError, match="returned a generator, which cannot be sent back") as caught:
        ranks.run(lambda rank, world_size: (i for i in range(3)), world_size=2)
    assert "\n" not in str(caught.value)


def test_the_same_call_gives_the_same_bytes():
    def noisy(rank, world_size):
        x = torch.rand(1000) + torch.from_numpy(np.random.rand(1000))
        dist.all_reduce(x)
        return x.numpy().tobytes()

    first, second = (ranks.run(noisy, world_size=4) for _ in range(2))
    assert first == second
    assert ranks.run(noisy, world_size=4, seed=1) != first


def test_ranks_draw_different_numbers():
    drawn = ranks.run(lambda rank, world_size: torch.rand(1).item(), world_size=4)
    assert len(set(drawn)) == 4


@pytest.mark.parametrize("who", [(0, 1), (0,), (1,)])
def test_a_worker_may_end_its_group(who):
    """A script's cleanup does so, whether or not the group is its own."""

    def ends_its_group(rank, world_size, who):
        x = torch.ones(2)
        dist.all_reduce(x)
        if rank in who:
            dist.destroy_process_group()
        return x.tolist(), dist.is_initialized()

    results = ranks.run(ends_its_group, world_size=2, args=(who,))
    assert results == [([2.0, 2.0], rank not in who) for rank in range(2)]
    assert [m.call for m in results.ledger] == ["all_reduce"] * 2 and all(m.end is not None for m in results.ledger)


def test_runs_at_the_same_time_do_not_meet():
    results = {}

    def launch(k):
        results[k] = ranks.run(lambda rank, world_size: (k, all_reduced_rank(rank, world_size)[1]), world_size=3)

    threads = [threading.Thread(target=launch, args=(k,)) for k in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert results == {k: [(k, 3)] * 3 for k in range(4)}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_thread_of_a_rank_interrupts_another():
    def policies(rank, world_size):
        dist.new_group()
        dist.barrier()
        return {int(tid): os.sched_getscheduler(int(tid)) for tid in os.listdir("/proc/self/task")}

    for found in ranks.run(policies, world_size=2):
        assert len(found) > 2 and set(found.values()) == {os.SCHED_BATCH}, found  # gloo's threads as well


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ranks_listen_on_loopback_only():
    def listening(rank, world_size):
        dist.barrier()
        lines = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
        places = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd") if int(fd) > 2]
        mine = {os.readlink(place) for place in places if os.path.islink(place)}
        return [line.split()[1] for line in lines if line.split()[3] == "0A" and f"socket:[{line.split()[9]}]" in mine]

    for addresses in ranks.run(listening, world_size=2):
        assert all(address.startswith("0100007F:") for address in addresses), addresses  # 127.0.0.1


@forked
def test_the_server_has_one_thread_and_comes_back_when_killed():
    ranks.run(all_reduced_rank, world_size=2)
    server = processes._server.started
    if sys.platform == "linux":
        assert len(os.listdir(f"/proc/{server.pid}/task")) == 1  # forking a process with threads is not safe
    server.kill()
    server.wait()
    assert ranks.run(all_reduced_rank, world_size=2) == [(0, 1), (1, 1)]


def not_imported(rank, world_size, names):
    return [name for name in names if name not in sys.modules]


@forked
def test_the_server_imports_what_every_rank_would(monkeypatch):
    """And it keeps its one thread, without which a fork is not safe."""
    names = {"sqlite3.dump", "wsgiref.simple_server", "xml.dom.minidom"}
    monkeypatch.setattr(processes, "PRELOAD", {*names, "there.is.no.such.module"})
    assert ranks.run(not_imported, world_size=1, args=(sorted(names),)) == [[]]
    if sys.platform == "linux":
        assert len(os.listdir(f"/proc/{processes._server.pid}/task")) == 1


@forked
def test_a_request_may_be_longer_than_a_socket_hands_over_at_once(monkeypatch):
    monkeypatch.setattr(processes, "PRELOAD", {f"there.is.no.such.module.{i}" for i in range(2_000)})
    assert ranks.run(not_imported, world_size=1, args=([],)) == [[]]


@forked
def test_the_folder_in_which_ranks_was_imported_may_go(tmp_path):
    done = program(
        tmp_path,
        "import os\n"
        "os.mkdir('gone')\n"
        "os.chdir('gone')\n"
        "import ranks\n"
        "ranks.run(lambda rank, world_size: rank, world_size=1)\n"  # the server starts here
        "os.chdir('..')\n"
        "os.rmdir('gone')\n"
        "print(ranks.run(lambda rank, world_size: rank, world_size=2))\n",
    )
    assert done.stdout == "[0, 1]\n", done.stderr


@forked
def test_a_server_that_ends_as_soon_as_it_starts_is_reported_in_one_line(tmp_path):
    done = program(tmp_path, "import sys\nsys.executable = '/bin/false'\nimport ranks\nranks.run(print, 2)\n")
    assert done.stderr.splitlines()[-1].startswith("RuntimeError: no rank was started: the process that forks")


@forked
def test_a_kernel_that_is_killed_takes_its_ranks_along(tmp_path):
    script = tmp_path / "kernel.py"
    script.write_text(
        "import os, time, ranks\n"
        "def worker(rank, world_size):\n"
        f"    open(r'{tmp_path}/pid' + str(rank), 'w').write(str(os.getpid()))\n"
        "    time.sleep(900)\n"
        "ranks.run(worker, world_size=2)\n"
    )
    kernel = subprocess.Popen([sys.executable, str(script)], env={**os.environ, "TMPDIR": tempfile.gettempdir()})
    pids = [tmp_path / "pid0", tmp_path / "pid1"]
    _until(lambda: all(p.exists() and p.read_text() for p in pids), 600)
    kernel.kill()
    kernel.wait()
    _until(lambda: not any(_alive(int(p.read_text())) for p in pids), 600)


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _until(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.05)


def test_an_interrupt_ends_the_run(tmp_path):
    timer = threading.Timer(0.8, lambda: os.kill(os.getpid(), 2))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            ranks.run(lambda rank, world_size: time.sleep(900), world_size=2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ranks.run(all_reduced_rank, world_size=1) == [(0, 0)]


def test_a_rank_does_not_start_ranks():
    with pytest.raises(ranks.RankError, match="inside a rank"):
        ranks.run(lambda rank, world_size: ranks.run(all_reduced_rank, world_size=2), world_size=2)


def test_too_much_output_ends_the_run():
    def endless(rank, world_size):
        while True:
            print("x" * 10_000)

    with pytest.raises(ranks.RankError, match="printed more than 16 MiB"):
        ranks.run(endless, world_size=2, echo=False)


@pytest.mark.slow
def test_without_fork_ranks_are_spawned(monkeypatch):
    """The run's time begins when they have imported torch, which takes longer than this run may."""

    def ring(rank, world_size):  # sent by value: its module need not be imported in the run's time
        got = torch.empty(3)
        work = dist.isend(torch.full((3,), float(rank)), dst=1 - rank)
        dist.recv(got, src=1 - rank)
        work.wait()
        return got + rank

    monkeypatch.setenv("RANKS_START", "spawn")
    monkeypatch.setattr(processes.SpawnedRanks, "_warned", False)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        results = ranks.run(ring, world_size=2, timeout=0.5)
        ranks.run(all_reduced_rank, world_size=1)
    assert torch.equal(results[0], torch.full((3,), 1.0)) and results.ledger.bytes_sent() == [12, 12]
    assert len([warning for warning in said if "takes seconds" in str(warning.message)]) == 1


@pytest.mark.slow
@pytest.mark.thorough
def test_torchrun_runs_the_same_worker(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import os, torch.distributed as dist\n"
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_ranks import ring_step\n"
        "dist.init_process_group('gloo')\n"
        "rank, world_size = dist.get_rank(), dist.get_world_size()\n"
        "told = f'RESULT {rank} {ring_step(rank, world_size, 2).tolist()}\\n'\n"
        "print(told, end='', flush=True)\n"  # in one write: the ranks share the pipe
        "dist.destroy_process_group()\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    here = ranks.run(ring_step, world_size=2, args=(2,))
    for rank in range(2):
        assert f"RESULT {rank} {here[rank].tolist()}" in done.stdout


def test_the_timeline_is_a_described_picture():
    results = ranks.run(ring_step, world_size=3, args=(4,))
    figure = results.timeline()
    assert "rank 2: 1 send, 1 receive." in figure.alt
    shown = figure._repr_html_()
    assert shown.startswith('<img src="data:image/svg+xml;base64,') and 'alt="Timeline of 3 ranks' in shown
    assert shown == figure._repr_html_(), "the same figure is the same bytes"
    assert figure.axes[0].get_xlabel() == "time (ms)" and figure.axes[0].get_title()


def test_the_rounds_are_a_described_picture_too():
    results = ranks.run(tree, world_size=4)
    figure = results.timeline(title="A tree", by="round")
    assert figure.alt == "Messages of 4 ranks by round. round 1: 0 to 1; round 2: 0 to 2, 1 to 3."
    assert figure.axes[0].get_xlabel() == "round" and figure.axes[0].get_title() == "A tree"
    with pytest.raises(ValueError, match='by must be "time" or "round"'):
        results.timeline(by="day")


def test_spans_and_messages_have_one_clock():
    def marked(rank, world_size):
        """An asynchronous all-reduce inside a stretch with a name, waited for later; torch marks its own step too."""
        parameter = torch.zeros(2, requires_grad=True)
        with record_function("backward"):
            work = dist.all_reduce(torch.zeros(8), async_op=True)
            while not work.is_completed():
                time.sleep(0.001)
            torch.optim.SGD([parameter], lr=0.1).step()
        with record_function("wait"):
            time.sleep(0.05)
            work.wait()

    results = ranks.run(marked, world_size=2)
    for rank in range(2):
        mine = results.ledger.of(rank)
        (message,) = mine
        backward, wait = mine.spans
        assert (backward.name, wait.name) == ("backward", "wait")
        assert backward.start <= message.start <= message.over <= backward.end <= wait.start
        assert message.over + 0.04 < message.end <= wait.end, "it was over before the rank waited"
    figure = results.timeline()
    assert "rank 1: 1 collective, 1 × backward, 1 × wait." in figure.alt
    assert "wait" in [text.get_text() for text in figure.axes[0].texts]


def test_a_ledger_is_cut_by_the_names_of_spans():
    def two_steps(rank, world_size):
        """A barrier before and after each step; an all-reduce that the first step starts and the second waits for."""
        x, right, left = torch.ones(2), (rank + 1) % world_size, (rank - 1) % world_size
        dist.barrier()
        with record_function("step 1"):
            work = dist.isend(x, dst=right)
            dist.recv(torch.empty(2), src=left)
            work.wait()
            late = dist.all_reduce(torch.ones(4), async_op=True)
        dist.barrier()
        with record_function("step 2"):
            late.wait()
            for _ in range(2):
                with record_function("inner"):
                    dist.all_reduce(x)
            dist.broadcast(x, src=0)
        dist.barrier()
        if rank == 0:
            with record_function("only rank 0"):
                dist.isend(x, dst=right).wait()
        if rank == 1:
            dist.recv(x, src=left)

    ledger = ranks.run(two_steps, world_size=3).ledger
    first, second = ledger.within("step 1"), ledger.within("step 2")
    for rank in range(3):
        calls = [[m.call for m in part.of(rank)] for part in (first, second)]
        assert calls == [["isend", "recv", "all_reduce"], ["all_reduce", "all_reduce", "broadcast"]]
        assert [s.name for s in second.of(rank).spans] == ["inner", "inner"] and not first.spans
        parts = ledger.of(rank).between_barriers()
        assert parts[1:3] == [first.of(rank), second.of(rank)], "the very messages between the barriers"
    assert first.bytes_sent() == [8] * 3 and first.rounds() == 1 and first.world_size == 3
    (late,) = first.of(1).collectives()
    between = [m for m in ledger.of(1) if m.call == "barrier"][1]
    assert late.end > between.end, "it belongs to the step that began it, not to the one that waited"
    inner = second.within("inner")
    assert [m.call for m in inner] == ["all_reduce"] * 6 and inner == ledger.within("inner")
    assert ledger.sends().within("step 1") == first.sends() and not ledger.sends().within("step 2")
    assert ledger.within("only rank 0").bytes_sent() == [8, 0, 0]
    with pytest.raises(ValueError, match=r"no rank marked 'step 3' .*; marked are: 'step 1', 'step 2', 'inner', 'only"):
        ledger.within("step 3")
    with pytest.raises(ValueError, match="marked are: none"):
        Ledger(ledger).within("step 1")


def test_a_span_that_was_not_left_reaches_to_the_end():
    messages = [Message(rank, "barrier", None, 0, start, start + 0.5) for start in (0.0, 2.0, 4.0) for rank in (0, 1)]
    ledger = Ledger(messages, spans=[Span(0, "open", 1.0), Span(1, "open", 1.0, 3.0), Span(0, "in it", 1.0, 1.0)])
    part = ledger.within("open")
    assert [(m.rank, m.start) for m in part] == [(0, 2.0), (1, 2.0), (0, 4.0)]
    assert [s.name for s in part.spans] == ["in it"]


@forked
def test_a_fork_of_a_rank_may_stop_recording():
    def forks_two(rank, world_size):
        """Two forks of a rank mark a span; only the second has detached. What each sees as its record."""
        mine = record.current_path()
        seen = [mine]
        for name in ("attached", "detached"):
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    if name == "detached":
                        record.detach()
                    with record_function(name):
                        pass
                    os.write(write, str(record.current_path()).encode())
                finally:
                    os._exit(0)
            os.waitpid(pid, 0)
            seen.append(os.read(read, 4096).decode())
        dist.barrier()
        return seen, mine.read_text().count('"op":"barrier"')

    results = ranks.run(forks_two, world_size=2)
    for rank, ((path, attached, detached), calls) in enumerate(results):
        assert path.name == f"events.{rank}" and attached == str(path) and detached == "None"
        assert calls == 1, "the rank itself goes on recording"
    assert [(s.rank, s.name) for s in sorted(results.ledger.spans, key=lambda s: s.rank)] == [
        (0, "attached"),
        (1, "attached"),
    ]


def test_outside_a_run_nothing_is_recorded():
    assert record.current_path() is None
    record.detach()  # without effect
    assert record.current_path() is None


def test_collectives_that_overlap_have_lanes_of_their_own():
    times = [(0.0, 3.0, None), (1.0, 9.0, 2.0), (2.5, 5.0, None), (3.0, 4.0, None)]
    calls = [Message(0, "all_reduce", None, 4, start, end, over=over) for start, end, over in times]
    lanes = timeline._lanes(calls)
    assert [lanes[id(m)] for m in calls] == [0, 1, 1, 0]


def column(rank):
    return (torch.arange(4.0) + 10 * rank).reshape(2, 2)[:, 0]


def other_dtype(rank):
    return torch.arange(4.0) if rank == 0 else torch.zeros(4, dtype=torch.int32)


def two_if_first(rank, x):
    """What the first rank alone gives to a scatter or gather."""
    return [x, x.clone()] if rank == 0 else None


def splits(rank, n):
    """Rank 0 gives no sizes of what it sends, since its parts are equal; the others' are not."""
    got, mine = torch.zeros(5 if rank else 3), torch.arange(4.0) + 10 * rank
    sizes = {"input_split_sizes": [1, 3]} if rank else {}
    dist.all_to_all_single(got, mine, output_split_sizes=[2, 3] if rank else [2, 1], **sizes)
    assert got.tolist() == ([2, 3, 11, 12, 13] if rank else [0, 1, 10])


OTHER_DTYPES = "(?=.*float32)(?=.*int32).*no number is converted"

#: Worker → the remark after its run, None if there is none.
TRAPS = {
    lambda rank, n: (dist.recv if rank else dist.send)(other_dtype(rank), 1 - rank): OTHER_DTYPES,
    lambda rank, n: dist.broadcast(other_dtype(rank), 0): OTHER_DTYPES,
    lambda rank, n: dist.all_reduce(other_dtype(rank)): OTHER_DTYPES,
    lambda rank, n: dist.scatter(other_dtype(rank), two_if_first(rank, other_dtype(rank)), 0): OTHER_DTYPES,
    lambda rank, n: dist.all_reduce(torch.ones(4), dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM): (
        "called all_reduce .16 bytes. with SUM .*called all_reduce .16 bytes. with MAX"
    ),
    lambda rank, n: dist.scatter(torch.ones(4 << rank), two_if_first(rank, torch.ones(4)), 0): (
        "scatter from rank 0 .32 bytes. for 16 bytes per rank.* scatter from rank 0 for 32 bytes per rank"
    ),
    lambda rank, n: dist.gather(torch.ones(8 >> rank), two_if_first(rank, torch.zeros(8)), 0): (
        "called gather to rank 0 .32 bytes..*called gather to rank 0 .16 bytes."
    ),
    lambda rank, n: dist.all_reduce(column(rank)): "ranks 0 and 1 called all_reduce .* of a tensor with gaps",
    lambda rank, n: dist.broadcast(column(rank), 0): "called broadcast from rank 0 .* of a tensor with gaps",
    lambda rank, n: dist.reduce(column(rank), 0): "called reduce to rank 0 .* of a tensor with gaps",
    lambda rank, n: dist.all_reduce(torch.zeros(1).expand(3)): "of a tensor with gaps",
    lambda rank, n: dist.broadcast(torch.zeros(2, 3) if rank else torch.zeros(3, 2).t(), 0): "strides .1, 2.",
    lambda rank, n: dist.scatter(torch.zeros(2), [column(0)] * 2 if rank == 0 else None): "tensors in several orders",
    lambda rank, n: dist.all_gather([torch.zeros(1)] * n, torch.ones(1)): "rank 0 gave all_gather .* share memory",
    lambda rank, n: dist.gather(torch.ones(1), [torch.zeros(1)] * n if rank == 0 else None): "rank 0 gave gather",
    lambda rank, n: dist.all_gather(list(torch.zeros(3).unfold(0, 2, 1)), torch.ones(2)): "share memory",
    lambda rank, n: dist.all_reduce(torch.ones(1), async_op=True): "rank 0's all_reduce .* was never waited for",
    lambda rank, n: dist.irecv(torch.ones(1), 0) if rank else dist.send(torch.ones(1), 1): "rank 1's irecv from rank 0",
    lambda rank, n: ring_step(rank, n, 5): None,
    splits: None,
    lambda rank, n: dist.all_reduce(torch.ones(2, 3).t()): None,
    lambda rank, n: dist.all_reduce(torch.ones(2, 1)[:, 0]): None,
    lambda rank, n: dist.all_gather(list(torch.zeros(2, 2).t()), column(rank)): None,
    lambda rank, n: dist.all_gather(list(torch.zeros(4).chunk(2)), torch.ones(2)): None,
    lambda rank, n: dist.all_reduce(torch.ones(1), async_op=True).get_future().wait() and None: None,
    lambda rank, n: dist.all_reduce(torch.ones(1), async_op=True).wait(): None,
}


@pytest.mark.parametrize("worker", TRAPS, ids=lambda worker: str(list(TRAPS).index(worker)))
def test_what_gloo_computes_wrongly_without_a_word_is_named(worker):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ranks.run(worker_without_a_result, 2, (worker,), echo=False)
    remarks = [warning for warning in caught if warning.category is RuntimeWarning]
    said = [str(warning.message) for warning in remarks]
    assert len(said) == (TRAPS[worker] is not None) and all(remark.filename == __file__ for remark in remarks), said
    assert all(re.search(TRAPS[worker], text) and "test_ranks.py, line" in text for text in said), said


def worker_without_a_result(rank, world_size, worker):
    worker(rank, world_size)


@pytest.mark.parametrize("call", ["all_gather", "all_to_all_single"])
def test_collectives_that_kill_a_rank_since_they_do_not_fit_are_named(call):
    def calls_otherwise(rank, world_size):
        mine, got = torch.ones(4 << rank), torch.zeros(2, 4 << rank)
        dist.all_gather(list(got), mine) if call == "all_gather" else dist.all_to_all_single(got[0], mine)

    with pytest.raises(ranks.RankError, match=f"called {call} .16 bytes..*called {call} .32 bytes.") as caught:
        ranks.run(calls_otherwise, 2, echo=False)
    assert caught.value.type_name == ""


@pytest.mark.parametrize("call", ["all_reduce", "broadcast"])
def test_a_dtype_that_gloo_does_not_have_is_named(call):
    def calls_with_few_bits(rank, world_size):
        getattr(dist, call)(torch.ones(4).to(torch.float8_e4m3fn), *([0] if call == "broadcast" else []))

    with pytest.raises(ranks.RankError, match=f"gloo has no {call} for torch.float8_e4m3fn: convert the tensor"):
        ranks.run(calls_with_few_bits, 2, echo=False)


@pytest.mark.parametrize("world_size", [np.int64(2), np.uint8(2), torch.tensor(2)])
def test_a_number_of_ranks_may_be_of_any_whole_type(world_size):
    assert ranks.run(all_reduced_rank, world_size=world_size, seed=world_size) == [(0, 1), (1, 1)]


def calls_exit(rank, world_size, code):
    dist.barrier()
    sys.exit(code)


@pytest.mark.parametrize("code", [None, 0])
def test_a_worker_may_end_as_a_program_does(code):
    assert ranks.run(calls_exit, 2, (code,)) == [None, None]


@pytest.mark.parametrize(("code", "said"), [("out of data", "SystemExit: out of data"), (3, "SystemExit: 3")])
def test_a_worker_that_exits_with_an_error_has_failed(code, said):
    with pytest.raises(ranks.RankError, match=said):
        ranks.run(calls_exit, 2, (code,))


#: What a notebook's cells define, and what pickle finds only in `__main__`.
CELLS = """
import collections, dataclasses, enum, io, sys
import torch, torch.distributed as dist

class Outer:
    class Inner:
        pass

@dataclasses.dataclass
class Point:
    x: int

class Kind(enum.Enum):
    A = 1

Pair = collections.namedtuple("Pair", "a b")

def double(x):
    return 2 * x

def worker(rank, world_size, argument):
    mine = Point(rank), Kind.A, Pair(1, 2), double, Outer.Inner, argument
    found, told, file = [None] * world_size, [mine if rank == 0 else None], io.BytesIO()
    dist.all_gather_object(found, mine)
    dist.broadcast_object_list(told, 0)
    torch.save({"p": Point(3)}, file)
    file.seek(0)
    same = all(one[1:5] == mine[1:5] for one in [*found, *told])
    return [one[0] for one in found], same, torch.load(file, weights_only=False)["p"].x, type(found[1][5]).__name__
"""


class Autocall:
    """As IPython's `exit` in a notebook: it holds the shell, which cannot be sent."""

    __module__ = "IPython.core.autocall"

    def __init__(self):
        self.shell = threading.Lock()


def test_pickle_finds_the_classes_of_the_notebook_in_a_rank(monkeypatch):
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(CELLS, vars(main))
    results = ranks.run(main.worker, 2, (main.Point(5),))
    assert results == [([main.Point(0), main.Point(1)], True, 3, "Point")] * 2
    vars(main)["exit"] = Autocall()
    exec("def leaves(rank, world_size):\n    exit()\n", vars(main))
    assert ranks.run(main.leaves, 2) == [None, None]


def test_weak_references_of_the_notebook_are_dead_in_a_rank():
    thing = threading.Event()
    listed, keyed, weak = [weakref.ref(thing)], {weakref.ref(thing): 1}, weakref.WeakKeyDictionary({thing: 1})
    worker = lambda rank, world_size: (listed[0](), [(one(), n) for one, n in keyed.items()], list(weak))  # noqa: E731
    assert ranks.run(worker, 1) == [(None, [(None, 1)], [])]


class Mute(Exception):
    def __str__(self):
        return self.no_such_attribute


def raises(error, *notes):
    for note in notes:
        error.add_note(note)
    raise error


#: How a worker fails → what is reported.
ODD = {
    lambda: breakpoint(): r"raised BdbQuit: breakpoint\(\) and pdb need a terminal",
    lambda: input("how many? "): "raised EOFError: input.. has nothing to read in a rank",
    lambda: raises(Mute()): r"raised Mute: \(its text cannot be shown: __str__ raised AttributeError\)",
    lambda: raises(ValueError("half \ud800 a sign")): r"raised ValueError: half \\ud800 a sign",
    lambda: raises(ValueError("x" * 10**6)): "raised ValueError: x{20000} … and 980,000 more characters",
    lambda: raises(ExceptionGroup("several", [KeyError("first")]), "in step 3"): (
        "(?s)raised ExceptionGroup: several.*in step 3\n  KeyError: 'first'"
    ),
    lambda: raises(MemoryError()): "(?m)raised MemoryError$",
}


def fails_oddly(rank, world_size, fails):
    fails()


@pytest.mark.parametrize("fails", ODD, ids=lambda fails: str(list(ODD).index(fails)))
def test_an_odd_error_keeps_its_class_its_line_and_a_text(fails):
    with pytest.raises(ranks.RankError, match=ODD[fails]) as caught:
        ranks.run(fails_oddly, 2, (fails,), echo=False)
    assert "in fails_oddly" in caught.value.traceback


def receives_what_nobody_sends(rank, world_size):
    if rank == 1:
        dist.recv(torch.zeros(1), 0)


@pytest.mark.parametrize("worker", [fails_oddly, receives_what_nobody_sends])
def test_errors_travel_between_processes(worker):
    with pytest.raises((ranks.RankError, ranks.HangError)) as caught:
        ranks.run(worker, 2, (lambda: raises(Mute()),) if worker is fails_oddly else (), echo=False)
    error = pickle.loads(pickle.dumps(caught.value))
    assert type(error) is type(caught.value) and str(error) == str(caught.value)
    assert vars(error).keys() == vars(caught.value).keys() and error.evidence == caught.value.evidence


def test_of_a_progress_bar_the_last_state_is_printed(capsys):
    def shows_a_bar(rank, world_size):
        for done in range(5):
            print(f"\r{done + 1} of 5", end="", flush=True)
        print()
        print("\rhalf", end="\rwhole", flush=True)

    ranks.run(shows_a_bar, 1)
    assert capsys.readouterr().out == "[rank 0] 5 of 5\n[rank 0] whole\n"


@pytest.mark.skipif(sys.platform == "win32", reason="has no such limit")
def test_a_limit_on_open_files_is_told_before_a_rank_starts():
    import resource

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    try:
        with pytest.raises(ValueError, match="128 ranks need about 320 open files, and this system allows"):
            ranks.run(ring_step, 128, (1,))
        assert ranks.run(all_reduced_rank, 2) == [(0, 1), (1, 1)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_working_folder_that_is_gone_is_told(tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend("")
    folder.rmdir()
    monkeypatch.setattr(processes, "start", lambda *_: os.path.abspath("x"))  # as a new server does
    with pytest.raises(ValueError, match="the working folder is gone"):
        ranks.run(all_reduced_rank, 2)


SCRIPT = """
import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist

from beside import TWO


@dataclass
class Sum:
    value: float


def worker(rank, world_size, scale="1"):
    x = torch.full((2,), float(rank))
    dist.all_reduce(x)
    return Sum(x[0].item() * float(scale) * TWO)


def hangs(rank, world_size):
    if rank:
        dist.barrier()


def raises(rank, world_size):
    raise KeyError(rank)


if __name__ == "__main__":
    sys.exit("another launcher's")
"""


def commanded(folder, *arguments):
    """`python -m ranks` with these arguments, in this folder: exit status, lines of output, lines of errors."""
    (folder / "script.py").write_text(SCRIPT)
    (folder / "beside.py").write_text("TWO = 2\n")
    command = [sys.executable, "-m", "ranks", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, cwd=folder.parent, env=environment, capture_output=True, text=True, timeout=900)
    return done.returncode, done.stdout.splitlines(), done.stderr.splitlines()


def test_the_command_runs_a_worker_of_a_file(tmp_path):
    at = f"{tmp_path.name}/script.py:worker"
    code, lines, errors = commanded(tmp_path, at, "-n", "3", "10", "--timeline", f"{tmp_path}/drawn.svg")
    assert (code, errors) == (0, []), errors
    assert lines[0].split()[:2] == ["rank", "call"] and len(lines) == 1 + 3 + 3
    assert lines[-3:] == [f"rank {rank} returned Sum(value=60.0)" for rank in range(3)]
    assert "<svg" in (tmp_path / "drawn.svg").read_text()


def test_the_command_explains_a_hang_and_an_exception_and_exits_with_1(tmp_path):
    at = f"{tmp_path.name}/script.py"
    code, lines, errors = commanded(tmp_path, f"{at}:hangs", "-n", "2", "--timeline", f"{tmp_path}/hang.png")
    assert (code, lines, errors[0]) == (1, [], "rank 1 waits forever") and (tmp_path / "hang.png").is_file()
    code, lines, errors = commanded(tmp_path, f"{at}:raises", "-n", "1")
    assert (code, lines, errors[0]) == (1, [], "rank 0 raised KeyError: 0")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{at}"], "there is no Python file ''"),
        (["nowhere.py:worker"], "there is no Python file 'nowhere.py'"),
        (["{at}:none"], "script.py has no function 'none'"),
        (["{at}:worker", "-n", "0"], "world_size must be a whole number of ranks"),
        (["{at}:worker", "-n", "1", "--timeline", "nowhere/x.png"], "No such file or directory"),
    ],
)
def test_the_command_says_in_one_line_why_it_runs_nothing(tmp_path, arguments, says):
    code, _, errors = commanded(tmp_path, *(one.format(at=f"{tmp_path.name}/script.py") for one in arguments))
    assert code == 2 and len(errors) == 1 and errors[0].startswith("ranks: ") and says in errors[0], errors
