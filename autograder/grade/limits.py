"""The limits on what the outside does with a submission's text and data, all in one place.

The jail bounds what a submission does inside. The numbers here bound what parsing, cutting, comparing, drawing and
showing its text and data may take outside. Each holds many times what honest work needs.

One rule covers what still takes too long or too much: it happens in a process that may die (a worker, a `Helper`). Such
a process has a limit of memory and one of time, and takes only the submission's own part with it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import resource
import signal
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ranks.stopwatch import Stopwatch

#: Characters of one cell's source, and of all cells. Python's parser takes about 375 bytes of memory for each.
SOURCE, ALL_SOURCE = 200_000, 2_000_000
#: Accents and other marks on one letter, as many as in what Unicode calls stream-safe text. Python puts those of a name
#: in order, in time that grows with the square of their number.
MARKS = 30
_BEYOND = re.compile(rf"[^\x00-\x7f]{{{MARKS // 2 + 1},}}")

#: Characters that one cell may show, its errors included, and all cells of a notebook together.
CELL_OUTPUT, ALL_OUTPUT = 2_000_000, 10_000_000
#: Characters for which each output counts besides its own: to check and write a notebook takes time for each.
ONE_OUTPUT = 1_000
#: Characters of an error's name, text and frames that are kept of each cell and property.
ERROR = 2_000
#: Errors of a cell that are still shown, without their tracebacks, when its output has been cut.
LATE_ERRORS = 3
#: Characters of one line, and of one source, that are colored on the feedback page; lines of that source.
COLORED_LINE, COLORED, COLORED_LINES = 2_000, 20_000, 1_000

#: Messages and spans that a picture of a failure shows, characters of a span's name, and of the picture's description.
PICTURE_MESSAGES, PICTURE_SPANS, SPAN_NAME, ALT = 150, 300, 100, 10_000

#: Characters of a notebook's file; cells; objects and lists in it, outputs and metadata included.
FILE, CELLS, PARTS = 50_000_000, 2_000, 200_000
#: Characters, in base64, of a picture in a cell of text, and of all of them.
PICTURE, ALL_PICTURES = 4_000_000, 16_000_000
#: Names in a submission's folder and below that are looked at, and that are listed; how deep its folders may lie.
SCANNED, NAMES, DEPTH = 20_000, 1_000, 20
#: Bytes of one declared data file, their number, and bytes of all of them: less than one message to the jail holds.
DATA_FILE, DATA_FILES, ALL_DATA = 20 * 2**20, 50, 200 * 2**20

#: What all formulas of a page may have: elements, or signs where these are more; what comes after stays as text.
FORMULAS = 40_000
#: Elements of a picture in SVG, those that `use` draws once more included.
SVG = 100_000

#: Bytes of address space and seconds for a process that makes one feedback page.
PAGE_MEMORY, PAGE_SECONDS = 4 * 2**30, 120.0
#: The same for a process that unpacks one file that a student has packed.
UNPACK_MEMORY, UNPACK_SECONDS = 2 * 2**30, 30.0
#: Bytes of address space of a worker beyond what it begins with, and its seconds of computing for one submission.
WORKER_MEMORY, WORKER_SECONDS = 6 * 2**30, 1_800.0


class OutOfLimitsError(Exception):
    """A process that worked on a submission's text or data has ended without a result."""


def source(text: str, kind: str = "code") -> str:
    """A cell's text as it is graded: of one that is too long, only a sentence that says so; a code cell raises it."""
    if len(text) > SOURCE:
        return left_out(f"it has more than {SOURCE:,} characters; keep data out of the source", kind)
    if kind == "code" and any(_has_many_marks(run) for run in _BEYOND.findall(text)):
        return left_out(f"a letter in it has more than {MARKS} accents", kind)
    return text


def left_out(why: str, kind: str) -> str:
    """What stands in place of a cell's text that is not graded."""
    return f"raise ValueError('this cell was not run: {why}')" if kind == "code" else f"(This cell is left out: {why}.)"


def _has_many_marks(run: str) -> bool:
    """Are there more than MARKS marks in a row?"""
    count = 0
    for sign in run:
        for part in unicodedata.normalize("NFKD", sign):
            count = count + 1 if unicodedata.combining(part) else 0
            if count > MARKS:
                return True
    return False


def well_formed(text: str) -> str:
    """`text` as any file can hold it and as it reads; what cannot be kept becomes question marks.

    These are half characters, control characters but for ANSI's escape, and those that change the direction of
    writing, which show code in another order than it runs in (CVE-2021-42574).
    """
    text = text.encode("utf-8", "replace").decode("utf-8")
    return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]", "?", text)


def last_states(text: str) -> str:
    """`text` as a terminal shows it: of a line with carriage returns, what comes after the last one.

    A carriage return at the end of a line is a part of the line's end. Takes time in proportion to the text.
    """
    *lines, last = text.split("\n")
    kept = [line[line.rfind("\r", 0, -1 if line.endswith("\r") else None) + 1 :] for line in lines]
    return "\n".join([*kept, last[last.rfind("\r") + 1 :]])


def is_plain(text: str) -> bool:
    """Is this text too long, or are its lines too many or too long, to be colored?"""
    lines = text.split("\n")
    return len(text) > COLORED or len(lines) > COLORED_LINES or max(map(len, lines)) > COLORED_LINE


def printable(text: str) -> str:
    """A text for a terminal, with a question mark for each code that a terminal would follow instead of showing it."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else "?" for sign in text)


def listed(parts: Iterable[str]) -> str:
    """One or more parts of a sentence: "a, b and c"."""
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def csv_cell(text: str) -> str:
    """A text for a CSV file, with an apostrophe in front where a spreadsheet might take it for a formula.

    Blanks and line breaks before the sign do not help it. To get the text back, remove one apostrophe where apostrophes
    are followed by one of = + - @, or by their full-width forms, which some programs take for them: a text that has
    some itself gets one more.
    """
    rest = text.lstrip("'")
    begins = rest.lstrip()
    return f"'{text}" if begins[:1] in tuple("=+-@＝＋－＠") or rest[:1] in ("\t", "\r", "\n") else text


def csv_text(rows: Iterable[Iterable[str]]) -> str:
    """A CSV file. Fields with commas, quotes or line breaks are quoted.

    Python's own writer leaves a carriage return unquoted before 3.13, at which other programs end the row.
    """

    def quoted(field: str) -> str:
        return '"' + field.replace('"', '""') + '"' if any(sign in field for sign in ',"\r\n') else field

    return "".join(",".join(map(quoted, row)) + "\n" for row in rows)


def bound_memory(size: int) -> None:
    """From now on, this process may have `size` bytes of address space more; beyond, it gets a MemoryError."""
    if sys.platform == "linux":
        with contextlib.suppress(ValueError, OSError), open("/proc/self/statm", encoding="ascii") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (now + size, resource.getrlimit(resource.RLIMIT_AS)[1]))


def unbound_memory() -> None:
    """Take `bound_memory` back: for programs that a worker starts and that have limits of their own."""
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


@contextlib.contextmanager
def bounded_time(seconds: float) -> Iterator[None]:
    """Inside, this process ends once it has computed for so long, even in the middle of a call that is not Python's."""
    previous = signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


class Helper:
    """A process that calls functions for this one and may die. It is forked when needed and kept for further calls.

    memory: bytes of address space beyond what this process has. seconds: for one call (`Stopwatch`). prepare: called in
    the process before its memory is limited.
    """

    def __init__(self, memory: int, seconds: float, prepare: Callable | None = None):
        self.memory, self.seconds, self.prepare = memory, seconds, prepare
        self.process: Any = None
        self.connection: Any = None
        self.owner = 0

    def call(self, function: Callable, *args: Any) -> Any:
        """`function(*args)`. OutOfLimitsError if the process dies of it, takes too long, or raises an exception."""
        if self.process is None or self.owner != os.getpid() or not self.process.is_alive():
            self._start()
        try:
            self.connection.send((function, args))
            stopwatch = Stopwatch(lambda: [self.process.pid])
            while not self.connection.poll(min(0.2, self.seconds)):
                if stopwatch.seconds() >= self.seconds:
                    raise OutOfLimitsError(f"it took more than {self.seconds:g} seconds")
            good, value = self.connection.recv()
        except (EOFError, OSError):
            self._end()
            raise OutOfLimitsError("its process ended") from None
        except OutOfLimitsError:
            self._end()
            raise
        if not good:
            raise OutOfLimitsError(value)
        return value

    def _start(self) -> None:
        context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.memory, self.prepare), daemon=True)
        self.owner = os.getpid()
        ours = self.connection
        os.register_at_fork(after_in_child=lambda: ours.closed or ours.close())
        self.process.start()
        theirs.close()

    def _end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()
        self.process = None


def _serve(connection: Any, memory: int, prepare: Callable | None) -> None:
    # A Jupyter server handles SIGTERM in its event loop. No loop runs in the fork, which would outlive its `terminate`,
    # and write to the loop of the parent, with which it shares the file that wakes it.
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes of the terminal; the parent ends this
    if prepare is not None:
        prepare()
    bound_memory(memory)
    while True:
        try:
            function, args = connection.recv()
        except (EOFError, OSError):  # the other side has ended
            return
        try:
            answer = True, function(*args)
        except Exception as error:
            answer = False, f"{type(error).__name__}: {error}"[:500]
        connection.send(answer)


#: Names of files that somebody may have handed in: notebooks, scripts, documents, archives.
COULD_BE_WORK = re.compile(r"\.(ipynb([.~ _-][^/]*)?|py|zip|tar|t?gz|7z|rar|docx?|pdf|html?)$", re.IGNORECASE)
#: How names begin that a system or an editor has put there.
OF_A_SYSTEM = (".", "__MACOSX", "~$")
#: Bytes that the systems take for the name of a folder.
LONGEST_NAME = 255
#: Not in a student's name: nbgrader writes it as it is into pages and scripts of the formgrader.
NOT_IN_NAMES = "<>&\"'`\\/"


def is_students_name(name: str) -> bool:
    """Can a folder of this name be a student's?"""
    return not why_no_student(name)


def why_no_student(name: str) -> str:
    """Why a folder of this name cannot be a student's, and what to do; '' if it can be."""
    for sign in name:
        if sign in NOT_IN_NAMES or not sign.isprintable():
            called = repr(sign) if sign.isprintable() else f"the invisible sign U+{ord(sign):04X}"
            return f"nbgrader cannot take {called} in a student's name: rename the folder, for instance to the login"
    if len(os.fsencode(name)) > LONGEST_NAME:
        return f"no folder can have a name of more than {LONGEST_NAME} bytes: name it by the login"
    if name != name.strip() or name.startswith(".") or not name:
        return "a student's name has no blank at its ends and no dot at its beginning: rename the folder"
    if name != unicodedata.normalize("NFC", name):
        return "there is another folder whose name looks the same, with accents written in another way: merge the two"
    return ""
