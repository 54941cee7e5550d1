"""What crosses the wall of the jail: plain data, in the form in which it was sent, and nothing else."""

import collections
import contextlib
import dataclasses
import json
import os
import socket
import struct
import threading

import numpy as np
import pytest
import torch

import ranks
from autograder.grade.jail import wire

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


def send_while_somebody_reads(connection, message):
    with contextlib.suppress(OSError):
        connection.sendall(message)


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
        range(2, 9, 3), ...,
        1 + 2j, torch.float16, torch.Size([2, 3]), collections.OrderedDict(b=1, a=2), collections.Counter("aab"),
        frozenset("x"), bytearray(b"y"), collections.deque([1, 2]), np.dtype("int16"),
    ],
)  # fmt: skip
def test_plain_data_crosses_as_it_is(value):
    got = across(value)
    assert type(got) is type(value) and got == value


def test_the_place_of_an_array_costs_the_same_however_many_came_before():
    class Counted(list):
        visited = 0

        def __iter__(self):
            for item in super().__iter__():
                Counted.visited += 1
                yield item

    writer = wire._Writer(None)
    writer.buffers = Counted()
    tree = writer.encode([np.arange(number, dtype="int8") for number in range(100)])
    places = [place for *_, place in tree[1]]
    assert places == [[number * (number - 1) // 2, number] for number in range(100)]
    assert Counted.visited <= 100


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
    for one in (
        torch.arange(7)[2::5],
        torch.arange(12.0).reshape(3, 4)[1:2, 1::3],
    ):  # an axis of length 1, stride 5 or 4
        assert torch.equal(across(one), one)
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
        raw(["x", "os.system"]), raw([]), raw([1]), raw({"a": 1}), raw(b"{"), raw(b"[" * 100_000),
        raw(["b", [0, 5]], b"abc"), raw(["b", [-1, 1]], b"abc"), raw(["a", "O", [1], [0], [0, 8]], bytes(8)),
        raw(["a", "f8", [10**9], [0], [0, 8]], bytes(8)), raw(["a", "f8,f8", [1], [0], [0, 16]], bytes(16)),
        raw(["T", "no_such", [1], [0], [0, 4], [False, False]], bytes(4)),
        raw(["T", "float32", [-1], [0], [0, 4], [0, 0]], bytes(4)),
        raw(["D", "os.environ", []]), raw(["N", "autograder.Case", [1]]), raw(["d", [[["l", []], 1]], ""]),
        raw(["s", [["l", []]]]), raw(["i", "z"]), raw(["i", "1" * 20_000]), raw(["r", [0, 1, 0]]),
        raw(["y", "float99"]), raw(["Y", "(1,"]), raw(["r", [0, 10**10, 1]]),
        raw(["o", "x", "y", "z"]), raw(None, size=2**40), raw(["_", 1]), raw(["number", 1]),
    ],
)  # fmt: skip
def test_what_is_no_message_is_an_error_and_nothing_else(message):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(10)
        sender = threading.Thread(target=lambda: (send_while_somebody_reads(ours, message), ours.close()))
        sender.start()
        with pytest.raises((wire.WireError, EOFError)):
            wire.receive(theirs)
        theirs.close()
        sender.join()


def test_half_characters_become_question_marks_wherever_they_stand():
    assert across(["a\ud800", {"\udfff": 1}]) == ["a?", {"?": 1}]
    reader = wire._Reader(memoryview(b""), {})
    assert reader.decode(["o", "O\ud800", 3, "m"]).type_name == "O?"
    assert str(reader.decode(["p", "a/\ud800"])) == "a/?"


@pytest.mark.parametrize("make", [set, frozenset, dict.fromkeys])
def test_keys_that_collide_are_refused_before_they_are_compared(make):
    many = make(k * (2**61 - 1) for k in range(wire.MAX_SAME_HASH + 1))
    with pytest.raises(wire.WireError, match="same hash"):
        across(many)
    few = make(k * (2**61 - 1) for k in range(wire.MAX_SAME_HASH))
    assert across(few) == few and across(make(range(10_000))) == make(range(10_000))


def test_a_message_is_read_only_until_its_deadline():
    with pytest.raises(TimeoutError):
        wire._Reader(memoryview(b""), {}, lambda: 0.0).decode(["l", list(range(2000))])
    ours, theirs = socket.socketpair()
    message = b"".join(wire.encoded(list(range(1_000_000))))
    with ours, theirs:
        sender = threading.Thread(target=send_while_somebody_reads, args=(ours, message))
        sender.start()
        with pytest.raises(TimeoutError):
            wire.receive(theirs, left=iter([0.1, *[0.0] * 9]).__next__)
        theirs.close()
        sender.join()


def test_a_reader_goes_on_waiting_while_there_is_time():
    """Of a limit less may have passed than the socket has waited: another program had the processor."""
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(TimeoutError):
        wire.receive(theirs, left=iter([0.01, 0.01, 0.01, 0.01, 0.0]).__next__)
    message = b"".join(wire.encoded(list(range(1_000_000))))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        threading.Thread(target=wire.send_all, args=(ours, message, lambda: 30.0)).start()
        assert len(wire.receive(theirs, left=lambda: 30.0)) == 1_000_000
        with pytest.raises(TimeoutError):  # nobody reads
            wire.send_all(ours, message, iter([0.01] * 4 + [0.0] * 9999).__next__)


@pytest.mark.parametrize("order", [[0], [0, 0], [1, 2], list(range(10_000)), ["a", 0]])
def test_axes_in_an_impossible_order_are_refused(order):
    for tree in (["a", "<f8", [1, 1], order, [0, 8]], ["T", "float64", [1, 1], order, [0, 8], [False, False]]):
        with pytest.raises((wire.WireError, TypeError)):
            wire._Reader(memoryview(bytearray(8)), {}).decode(tree)
