"""Attacks on what the grader does outside the jail with a submission's text and data, and on what jails share."""

from __future__ import annotations

import textwrap

from nbformat.v4 import new_code_cell

from tests.attacks.attack import FULL, WITHOUT_EX2, Attack, cells, set_answer, square
from tests.attacks.lessons import ARRAYS

WRONG = "def square(x):\n    return 0\n"
WITHOUT_EX1 = FULL | {"ex1": 0.0}


def _outside(name: str, tries: str, make, worth: dict | None = None, **more) -> Attack:
    return Attack(name, tries, make, worth or WITHOUT_EX2, aims="wire", **more)


def _refused(page) -> None:
    assert "it was refused" in page.page and "it was allowed" not in page.page


def _attempt(name: str, tries: str, source: str) -> Attack:
    """A cell that makes a call which reaches beyond the submission, and prints what came of it."""
    body = textwrap.indent(textwrap.dedent(source).strip(), "    ")
    cell = f"try:\n{body}\n    print('it was', 'allowed')\nexcept OSError:\n    print('it was', 'refused')\n"
    return _outside(name, tries, cells(cell), after=_refused)


def _big(nb) -> None:
    set_answer(nb, "ex2", WRONG)
    nb.cells.insert(2, new_code_cell("x = [" + "1, " * 6_600_000 + "]", id="mine"))


def _deep(nb) -> None:
    set_answer(nb, "ex2", WRONG)
    nb.cells.insert(2, new_code_cell("a" + ".a" * 90_000, id="mine"))


#: `double` as the wire would carry it if its kind of numbers were QUANTIZED.
QUANTIZED = """
import torch

def double(x):
    return torch.zeros(4, dtype=torch.uint8)

try:
    from jail import wire
    honest = wire._Writer._tensor
    wire._Writer._tensor = lambda self, tensor: ["T", "qint8", *honest(self, tensor)[2:]]
except ImportError:
    pass
"""

WATCH = """
def double(x):
    x *= 2
    return x

try:
    from jail import inside
    inside.Watch.changes = lambda self: []
    inside.Watch.aliases_of = lambda self, value: []
except ImportError:
    pass
"""

FLOOD = """
try:
    from jail import inside
    while True:
        inside.current._output("error", {"ename": "E", "evalue": "x" * 100_000, "traceback": ["y" * 100_000]})
except ImportError:
    pass
"""


HEAVY = """
try:
    from jail import inside, wire
    content = {"name": "stdout", "text": "x", "more": bytes(100_000_000)}
    wire.send(inside.current.connection, {"output": "stream", "content": content})
    wire.send(inside.current.connection, {"output": bytes(100_000_000), "content": {}})
except ImportError:
    pass
"""


def _first(source: str):
    return lambda nb: set_answer(nb, "ex1", source)


ATTACKS = [
    _attempt(
        "locks",
        "Tells another process its results by locks on ranges of a file of Python's, which every process sees.",
        """
        import fcntl, os, struct
        fcntl.fcntl(open(os.__file__, "rb"), fcntl.F_SETLK, struct.pack("hhlli", fcntl.F_RDLCK, 0, 7, 1, 0))
        """,
    ),
    _attempt(
        "lease",
        "Takes a lease on a file of Python's, so that whoever opens it outside has to wait.",
        "import fcntl, os\nfcntl.fcntl(open(os.__file__, 'rb'), fcntl.F_SETLEASE, fcntl.F_RDLCK)",
    ),
    _attempt(
        "sysvshm",
        "Takes memory in System V segments, which belong to no process and count for none.",
        """
        import ctypes
        if ctypes.CDLL(None).shmget(0, 2**30, 0o1600) < 0:
            raise OSError
        """,
    ),
    _attempt(
        "memfd",
        "Takes memory in files without a name, which no limit on files counts.",
        "import os\nos.memfd_create('x')",
    ),
    _attempt(
        "shared-pages",
        "Takes shared memory without a name, and lets go of its pages: then they are there and count for no process.",
        """
        import mmap, os
        try:
            mmap.mmap(-1, 2**20)
        except OSError:
            mmap.mmap(os.open("/dev/zero", os.O_RDWR), 2**20)
        """,
    ),
    _attempt(
        "protocols",
        "Asks for sockets of rare protocols, for which the system loads modules.",
        """
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
        """,
    ),
    _attempt(
        "modules",
        "Has the system load modules by pairs of sockets of a rare family, and by questions about bridges.",
        """
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
        """,
    ),
    _attempt(
        "timers",
        "Makes timers until the system has none left for any program of this user.",
        """
        import ctypes
        for _ in range(5_000):
            if ctypes.CDLL(None).timer_create(1, None, ctypes.byref(ctypes.c_void_p())):
                raise OSError
        """,
    ),
    _outside(
        "patchwatch",
        "Changes its argument and has the inner half say that it did not: what a copy would have done.",
        _first(WATCH),
        FULL,
        lesson=ARRAYS,
    ),
    _outside(
        "qint8",
        "Sends a tensor of a quantized type, at which torch ends the process that reads it.",
        _first(QUANTIZED),
        {"ex1": 0.0, "ex2": 2.0, "ex3": 0.0},
        lesson=ARRAYS,
    ),
    _outside(
        "nanflood",
        "Returns a hundred million NaNs, each of which becomes a text when they are compared.",
        _first("import numpy as np\n\ndef double(x):\n    return np.full(100_000_000, np.nan, np.float16)"),
        WITHOUT_EX1,
        lesson=ARRAYS,
    ),
    _outside(
        "longline",
        "Prints one line of 1.9 million characters, in which the search for line ends took an hour.",
        cells("print('x' * 1_900_000)"),
    ),
    _outside(
        "errorflood",
        "Shows errors without end, which used to be exempt from the limit of what a cell shows.",
        square(WRONG + FLOOD),
    ),
    _outside(
        "blanks",
        "Hands in 50,000 lines of one blank, which took long to color on the feedback page.",
        lambda nb: set_answer(nb, "ex2", WRONG + "#\n" + " \n" * 50_000 + "#"),
    ),
    _outside(
        "bigsource",
        "Hands in a cell of 20 MB, for which the parser took 7.5 GB.",
        _big,
        after=lambda found: _says(found, "200,000 characters"),
    ),
    _outside(
        "accents",
        "Hands in a name with 180,000 accents on one letter, which Python takes minutes to put in order.",
        lambda nb: nb.cells.insert(2, new_code_cell("a" + "\u0315\u0300" * 90_000, id="mine")),
        FULL,
        after=lambda found: _says(found, "30 accents"),
    ),
    _outside(
        "brackets",
        "Prints 1.9 million brackets, with which the graded notebook was no longer read back.",
        cells("print('[' * 1_900_000)"),
    ),
    _outside(
        "heavy-output",
        "Sends outputs with 100 MB of bytes, of which the grader made texts four times as long.",
        square(WRONG + HEAVY),
    ),
    _outside(
        "crumbs",
        "Shows twenty thousand outputs of one letter each, which took long to check and to write.",
        cells(
            "import sys\nfor _ in range(10_000):\n    sys.stdout.write('a')\n    sys.stdout.flush()\n"
            "    sys.stderr.write('b')\n    sys.stderr.flush()"
        ),
    ),
    _outside("deepsource", "Hands in `a.a.a…`, nested more deeply than Python's parser goes.", _deep),
]


def _says(page, text: str) -> None:
    assert text in page.page, f"the page does not say: {text}"
