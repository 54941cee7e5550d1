"""Attacks on what the grader does outside the jail with a submission's text and data, and on what jails share."""

from __future__ import annotations

import textwrap
from functools import partial

from tests.attacks.attack import FULL, Attack, by_answer, by_cell, with_answers, written
from tests.attacks.lessons import ARRAYS
from tests.attacks.wire import double
from tests.helpers.toy_course import WRONG_SQUARE


def _attempt(name: str, tries: str, source: str) -> Attack:
    """A cell that makes a call which reaches beyond the submission, and prints what came of it."""
    body = textwrap.indent(source, "    ")
    cell = f"try:\n{body}\n    print('it was', 'allowed')\nexcept OSError:\n    print('it was', 'refused')\n"
    return by_cell(name, tries, cell, after=_refused)


def _refused(found) -> None:
    assert "it was refused" in found.page and "it was allowed" not in found.page


def _arrays(name: str, tries: str, source: str, worth: dict[str, float]) -> Attack:
    return Attack(name, tries, with_answers(ex1=source), worth, lesson=ARRAYS)


def _says(found, text: str) -> None:
    assert text in found.page, f"the page does not say: {text}"


ATTACKS = [
    *written(
        """
=== attempt: locks
# Tells another process its results by locks on ranges of a file of Python's, which every process sees.
import fcntl, os, struct
fcntl.fcntl(open(os.__file__, "rb"), fcntl.F_SETLK, struct.pack("hhlli", fcntl.F_RDLCK, 0, 7, 1, 0))
=== attempt: lease
# Takes a lease on a file of Python's, so that whoever opens it outside has to wait.
import fcntl, os
fcntl.fcntl(open(os.__file__, 'rb'), fcntl.F_SETLEASE, fcntl.F_RDLCK)
=== attempt: sysvshm
# Takes memory in System V segments, which belong to no process and count for none.
import ctypes
if ctypes.CDLL(None).shmget(0, 2**30, 0o1600) < 0:
    raise OSError
=== attempt: memfd
# Takes memory in files without a name, which no limit on files counts.
import os
os.memfd_create('x')
=== attempt: shared-pages
# Takes shared memory without a name, and lets go of its pages: then they are there and count for no process.
import mmap, os
try:
    mmap.mmap(-1, 2**20)
except OSError:
    mmap.mmap(os.open("/dev/zero", os.O_RDWR), 2**20)
=== attempt: protocols
# Asks for sockets of rare protocols, for which the system loads modules.
import errno, socket
for kind, protocol in ((2, 136), (1, 132), (6, 33), (1, 262), (6, 0), (5, 0), (4, 0)):
    try:
        socket.socket(2, kind, protocol)
        break
    except OSError as error:
        if error.errno != errno.EPERM:
            break
else:
    raise OSError
=== attempt: modules
# Has the system load modules by pairs of sockets of a rare family, and by questions about bridges.
import ctypes, errno, fcntl, socket
system = ctypes.CDLL(None, use_errno=True)
two = (ctypes.c_int * 2)()
answers = {(system.socketpair(family, 1, 0, two), ctypes.get_errno()) for family in (30, 31, 2)}
try:
    fcntl.ioctl(socket.socket(), 0x8940, bytes(64))
except OSError as error:
    answers.add((-1, error.errno))
if answers == {(-1, errno.EPERM)}:
    raise OSError
=== attempt: timers
# Makes timers until the system has none left for any program of this user.
import ctypes
for _ in range(5_000):
    if ctypes.CDLL(None).timer_create(1, None, ctypes.byref(ctypes.c_void_p())):
        raise OSError
=== watch: patchwatch
# Changes its argument and has the inner half say that it did not: what a copy would have done.
def double(x):
    x *= 2
    return x

from jail import inside
inside.Watch.changes = lambda self: []
inside.Watch.aliases_of = lambda self, value: []
=== quantized: qint8
# Sends a tensor of a quantized type, at which torch ends the process that reads it.
import torch
from jail import wire

def double(x):
    return torch.zeros(4, dtype=torch.uint8)

#: As the wire would carry it if its kind of numbers were quantized.
honest = wire._Writer._tensor
wire._Writer._tensor = lambda self, tensor: ["T", "qint8", *honest(self, tensor)[2:]]
=== double: nanflood
# Returns a hundred million NaNs, each of which becomes a text when they are compared.
import numpy as np

def double(x):
    return np.full(100_000_000, np.nan, np.float16)
=== cell: longline
# Prints one line of 1.9 million characters, in which the search for line ends took an hour.
print('x' * 1_900_000)
=== wrong: errorflood
# Shows errors without end, which used to be exempt from the limit of what a cell shows.
from jail import inside
while True:
    inside.current._output("error", {"ename": "E", "evalue": "x" * 100_000, "traceback": ["y" * 100_000]})
""",
        attempt=_attempt,
        watch=partial(_arrays, worth=FULL),
        quantized=partial(_arrays, worth={"ex1": 0.0, "ex2": 2.0, "ex3": 0.0}),
        double=double,
        wrong=partial(by_answer, head=WRONG_SQUARE),
    ),
    Attack(
        "blanks",
        "Hands in 50,000 lines of one blank, which took long to color on the feedback page.",
        with_answers(ex2=WRONG_SQUARE + "#\n" + " \n" * 50_000 + "#"),
    ),
    Attack(
        "bigsource",
        "Hands in a cell of 20 MB, for which the parser took 7.5 GB.",
        with_answers("x = [" + "1, " * 6_600_000 + "]", ex2=WRONG_SQUARE),
        after=partial(_says, text="200,000 characters"),
    ),
    Attack(
        "accents",
        "Hands in a name with 180,000 accents on one letter, which Python takes minutes to put in order.",
        with_answers("a" + "\u0315\u0300" * 90_000),
        FULL,
        after=partial(_says, text="30 accents"),
    ),
    *written(
        """
=== cell: brackets
# Prints 1.9 million brackets, with which the graded notebook was no longer read back.
print('[' * 1_900_000)
=== wrong: heavy-output
# Sends outputs with 100 MB of bytes, of which the grader made texts four times as long.
from jail import inside, wire
content = {"name": "stdout", "text": "x", "more": bytes(100_000_000)}
wire.send(inside.current.connection, {"output": "stream", "content": content})
wire.send(inside.current.connection, {"output": bytes(100_000_000), "content": {}})
=== cell: crumbs
# Shows twenty thousand outputs of one letter each, which took long to check and to write.
import sys
for _ in range(10_000):
    sys.stdout.write('a')
    sys.stdout.flush()
    sys.stderr.write('b')
    sys.stderr.flush()
""",
        wrong=partial(by_answer, head=WRONG_SQUARE),
    ),
    Attack(
        "deepsource",
        "Hands in `a.a.a…`, nested more deeply than Python's parser goes.",
        with_answers("a" + ".a" * 90_000, ex2=WRONG_SQUARE),
    ),
]
