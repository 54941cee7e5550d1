"""Functions and objects of a submission, as the tests outside the jail see and call them."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

import ranks
from autograder.checks import stage
from autograder.grade.jail import handles, wire
from autograder.grade.running import clock
from tests.helpers.jailed import run

pytestmark = pytest.mark.jail


def handle(jailed, source, name):
    assert run(jailed, source)[1] is None
    return handles.Handle(jailed, name)


def test_a_function_is_called_there_with_copies(jailed):
    function = handle(jailed, "def f(x, *, by=2):\n    return {'twice': x * by, 'at': [1, (2,)]}", "f")
    got = function(np.arange(3), by=4)
    assert np.array_equal(got["twice"], [0, 4, 8]) and got["at"] == [1, (2,)]
    assert function.__name__ == "f" and not hasattr(function, "__globals__")


LOOKS = """
import sys

def f(guess, low):
    found = [vars(guess) if hasattr(guess, "__dict__") else {}, [one.cell_contents for one in guess.__closure__ or ()]]
    frame = sys._getframe()
    while frame:
        found.append({name: value for name, value in frame.f_locals.items() if isinstance(value, (str, int, list))})
        frame = frame.f_back
    try:
        guess(-1)
    except ValueError as error:
        found.append(str(error))
    return str(4320 + 1) in str(found), guess(low, add=2), found[-1]
"""


def test_an_oracle_answers_here_and_what_it_knows_is_not_there(jailed):
    secret, asked = 4321, []

    def guess(number, add=0):
        asked.append(number)
        if number < 0:
            raise ValueError("numbers begin at 0")
        return number + add < secret

    looks, forks = handle(jailed, LOOKS, "f"), handle(jailed, FORKS, "g")
    with handles.in_jail():
        assert stage.call_inside(looks, stage.Oracle(guess), 10) == (False, True, "numbers begin at 0")
        assert asked == [-1, 10]
        assert stage.call_inside(forks, stage.Oracle(guess)) == ("refused", True)
        with pytest.raises(TypeError, match="ranks cannot ask an oracle"):
            ranks.run(looks, 2, (stage.Oracle(guess),))
    assert stage.call_inside(lambda ask: ask(5), stage.Oracle(guess)), "without a jail it is a plain call"


#: A process that the submission has forked would speak for it over the same line.
FORKS = """
import os

def g(guess):
    read, write = os.pipe()
    if not os.fork():
        try:
            said = str(guess(1))
        except RuntimeError:
            said = "refused"
        os.write(write, said.encode())
        os._exit(0)
    os.wait()
    return os.read(read, 99).decode(), guess(1)
"""


def test_what_it_changes_in_place_is_changed_here(jailed):
    function = handle(jailed, "def f(a, others):\n    a += 1\n    others[0].zero_()\n    return None", "f")
    array, tensor, untouched = np.ones(3), torch.ones(2), torch.ones(2)
    assert function(array, [tensor, untouched]) is None
    assert array.tolist() == [2, 2, 2] and tensor.tolist() == [0, 0] and untouched.tolist() == [1, 1]


def test_a_view_of_an_argument_is_one_here(jailed):
    function = handle(jailed, "def f(a):\n    return a[1:]", "f")
    array = np.zeros(3)
    function(array)[:] = 5
    assert array.tolist() == [0, 5, 5]
    tensor = torch.zeros(3)
    function(tensor).fill_(4)
    assert tensor.tolist() == [0, 4, 4]
    copy = handle(jailed, "def g(a):\n    return a[1:].copy()", "g")
    copy(array)[:] = 7
    assert array.tolist() == [0, 5, 5]


def test_what_it_raises_is_raised_here_with_its_place(jailed):
    source = "class Odd(ValueError): pass\ndef f(kind):\n    raise [ValueError, Odd, SystemExit, KeyError][kind]('why')"
    function = handle(jailed, source, "f")
    for kind, name, kin in ((0, "ValueError", ValueError), (1, "Odd", ValueError), (2, "SystemExit", Exception)):
        with pytest.raises(kin, match="why") as caught:
            function(kind)
        assert type(caught.value).__name__ == name
        assert "raise" in caught.value.frames[-1]
    with pytest.raises(Exception, match="why"):
        function(3)


def test_workers_that_mention_a_handle_run_there(jailed):
    function = handle(jailed, "def f(rank):\n    return (rank, __name__)", "f")

    def worker(rank, world_size, g):

        return g(rank), os.path.exists("/jail")

    with handles.in_jail():
        jailed.deadline = clock.now() + 30
        assert list(ranks.run(worker, 2, (function,), echo=False)) == [((0, "__main__"), True), ((1, "__main__"), True)]
        assert list(ranks.run(lambda rank, n: rank, 2, echo=False)) == [0, 1]
        assert not any(there for _, there in ranks.run(worker, 1, (lambda rank: rank,), echo=False))


def test_ranks_that_fail_or_hang_there_are_told_here(jailed):
    function = handle(jailed, "import torch.distributed as dist\ndef f(rank):\n    1 / rank", "f")
    with handles.in_jail(), pytest.raises(ranks.RankError, match="rank 0 raised ZeroDivisionError") as caught:
        ranks.run(lambda rank, n, g: g(rank), 2, (function,), echo=False)
    assert caught.value.rank == 0
    stuck = handle(jailed, "import torch\ndef h(rank):\n    dist.recv(torch.zeros(1), 1 - rank)", "h")
    with handles.in_jail(), pytest.raises(ranks.HangError) as hung:
        ranks.run(lambda rank, n, g: g(rank), 2, (stuck,), echo=False)
    assert len(hung.value.waits) == 2 and "recv" in str(hung.value)


def test_files_cross_as_plain_files(jailed):
    source = """
    import os
    def f(folder):
        os.symlink("/etc/hostname", folder + "/link")
        os.makedirs(folder + "/a")
        open(folder + "/a/b", "w").write(open(folder + "/in").read() * 2)
    """
    function = handle(jailed, source, "f")
    Path(jailed.folder, "in").write_text("xy")
    function(jailed.folder)
    assert Path(jailed.folder, "a", "b").read_text() == "xyxy"
    assert not Path(jailed.folder, "link").exists() and not Path(jailed.folder, "link").is_symlink()
    for name in ("in", "a/b"):
        Path(jailed.folder, name).unlink()
    Path(jailed.folder, "a").rmdir()


@pytest.mark.parametrize("name", ["../out", "/tmp/out", "a/../../out", "a\0b", "x" * 300])
def test_a_file_cannot_be_put_elsewhere(tmp_path, name):
    folder = tmp_path / "shared"
    folder.mkdir()
    with pytest.raises(wire.WireError):
        wire.write_folder(str(folder), {name: b"x"})
    assert [path.name for path in tmp_path.iterdir()] == ["shared"]


def test_an_object_stays_there_and_its_methods_are_called_there(jailed):
    source = "class Counter:\n    def __init__(self): self.n = 0\n    def add(self, k): self.n += k; return self.n"
    counter = handle(jailed, source, "Counter")()
    assert type(counter).__name__ == "Counter"
    assert (counter.add(2), counter.add(3), counter.n) == (2, 5, 5)
    with pytest.raises(AttributeError):
        _ = counter.nothing


@pytest.mark.parametrize(
    "names",
    [["/".join("a" * parts) for parts in range(1, 1900)], [str(number) for number in range(20_000)]],
    ids=["deep", "many"],
)
def test_folders_that_are_deep_or_full_are_refused_before_anything_is_written(tmp_path, names):
    with pytest.raises(wire.WireError):
        wire.write_folder(str(tmp_path), dict.fromkeys(names))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("strides", [[2**62], [-(2**62)], [16], [8, 8], [2.0], None])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_view_that_is_said_to_reach_outside_its_argument_is_a_copy(jailed, kind, strides):
    forge = f"from jail import inside\ninside.Watch.aliases_of = lambda self, value: [[0, 0, 0, [5], {strides}]]\n"
    function = handle(jailed, f"{forge}def f(a):\n    return a * 0 + 3", "f")
    argument = np.arange(5.0) if kind == "numpy" else torch.arange(5.0)
    got = function(argument)
    assert got.tolist() == [3] * 5
    got += 1
    assert argument.tolist() == [0, 1, 2, 3, 4]


def test_names_of_types_and_exceptions_are_short_and_printable(jailed):
    source = "class O: pass\nO.__name__ = 'a\\x07\\n' + 'b' * 10_000\ndef f(): return O()\n"
    source += "class E(Exception): pass\nE.__name__ = 'a\\x07\\n' + 'b' * 10_000\ndef g(): raise E('why')"
    name = type(handle(jailed, source, "f")()).__name__
    assert name == "a??" + "b" * 197
    with pytest.raises(Exception, match="why") as caught:
        handles.Handle(jailed, "g")()
    assert type(caught.value).__name__ == name


@pytest.mark.parametrize("how", ["function", "object"])
def test_what_a_checks_own_function_was_given_stays_as_it_was(jailed, how):
    """A submission finds it in the frame of its caller. A change would count for this check, and for later students."""
    source = "import sys\ndef f(x):\n    found = sys._getframe(1).f_locals\n    found['numbers'].fill(7)\n"
    function = handle(jailed, source + "    found['plans'][0][:] = ['x']\n    return float(x.sum())", "f")
    numbers, plans = np.ones(3), [[1, 2], [3]]

    class Keeps:
        """A check's object that lives next to the submission."""

        def __init__(self, function):
            self.function = function

        def go(self, numbers, plans):
            return self.function(numbers)

    def driver(f, numbers, plans):
        return f(numbers)

    with handles.in_jail():
        if how == "function":
            got = stage.call_inside(driver, function, numbers, plans)
        else:
            got = stage.call_inside(Keeps, function).go(numbers, plans)
    assert got == 21, "the submission has changed its copy"
    assert numbers.tolist() == [1, 1, 1] and plans == [[1, 2], [3]]


def test_what_is_packed_meanwhile_does_not_change_whose_handle_was_met():
    class Jailed:
        latest = property(lambda self: self)

    class PacksAnother:
        def __reduce__(self):
            assert handles.pack(handles.Handle(second, "g"))[1] is second
            return int, ()

    first, second = Jailed(), Jailed()
    assert handles.pack([handles.Handle(first, "f"), PacksAnother()])[1] is first
