"""What each attack tries and gets: `python -m tests.attacks.table` grades them, `--page` writes the book's page."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.attacks import catalog, lessons
from tests.attacks.course import Machine, Run
from tests.attacks.lessons import ON_RANKS

PAGE = Path(__file__).resolve().parents[2] / "book" / "start" / "attacks.md"

HEAD = """# What attacks get

The grader makes three promises. Every submission ends with a grade and its reasons. No submission changes or reads
another. No submission gains points that its answers are not worth.

The table measures them: {attacks} hostile submissions, each of which answers all exercises but one honestly and tries
something for that one, or against somebody else. *Here* is what it gets, which is what its honest part is worth.
`make test`, and `make thorough` for attacks on ranks, grade them as one class with honest students and check it.
`nbgrader autograde` of nbgrader 0.9.6, which runs submissions with the instructor's rights, fell to 91 of the 134
that aim at what it has, too, when each was measured in November 2026 in a jail of its own: it gave points for nothing
or no grade at all, changed files, or sent the hidden tests out.

`tests/test_fuzz.py` sends long, deep, odd and broken input to each place outside the jail that takes a submission's
text or data. What one submission can do to another in the same jail or at the same moment, with what lies in its
folder, in nbgrader's exchange, and by what the jail shows of the system, is tried by `test_neighbours.py`,
`test_folders.py`, `test_exchange.py` and `test_shown_files.py` in `tests/attacks/`.

Some of it cannot be promised:

- A flaw in the Linux kernel can open every jail on the machine. Keep the system up to date.
- Submissions that are graded at the same time share the machine's processors, its memory and the files of Python. One
  can notice what another makes slow, and two accomplices can talk to each other that way, or by `flock` on such a file,
  which torch needs for files of its own. With `--jobs 1`, only one is graded at a time. Even then one can leave a
  number for a later one: the system counts the pipes that it makes and never starts again.
- What a process leaves in the page cache outlives it. The calls that tell what is in the cache are refused, but
  the time that a read takes tells it, too.
- The system counts some things for all programs of one user together: descriptors that are under way between
  processes, epoll watches, pipe pages. Where root grades, the submissions of each jail have a user number of their own
  and can use up only their own share. If another user grades, or if not everybody may read Python's files, all
  submissions have the user number of the grader. A submission can then use these things up as far as its own limits go
  (128 open files in each of at most 400 processes), and the ranks of another one that is graded at the same moment can
  be refused theirs. The grader itself is not, and a submission whose jail does not start is tried again at the end.
  Processes and signals are counted for each jail since Linux 5.14, for the whole user before. That is all that one
  reaches of another by having the same number: it cannot signal, trace, read, slow down or limit its processes.
- A function can hide from its test that it changed an argument. A copy would have done as well.
- What can be seen only next to a submission (gradients, memory, who calls what) is recorded in its own process and
  compared outside. A program that rewrites the recorder can report what did not happen, as far as it can compute what
  should have.
- A fault that a check plants in a running program (chapter 17) is planted in its process. A program that looks for it
  there can name it without looking at what it changes. (What an answer may only ask about, as in 02-ex3, 04-ex2 and
  06-ex2, is answered outside.) The faulty steps of chapter 03 lie in the process of the
  test that judges them, too: it can read them, and keep one as the answer to `summing_step`.
- Where an exercise is tried again with the lesson's answers to earlier ones, its code can read these. All that leaves
  that run is which properties held. A student who hands in again and again can spell an answer with them, bit by bit.
- Every check fails for an answer that does nothing, and for one that refuses every call (`tests/test_idle_answers.py`).
  Four that count messages do not look at what these hold. An answer that recognizes such a check can send the right
  messages with wrong contents there; these checks are worth 2.5 of the course's 337 points.
- The runs of `train_watched` in chapter 17 are compared with one another, and not with another program's. An answer
  that trains nothing and makes up runs that fit one another keeps the marks of that exercise.
- That ranks learn about each other by the recorded messages alone is tested in chapter 01, where the exercise is to
  write them. Elsewhere a rank can hand numbers over in a file, or by the C++ calls of torch that nobody records.
- The system limits all processes of a jail together, and shares out the processors between jails, only where this user
  can write control groups. Elsewhere the grader checks them five times a second, and ends a submission that makes more
  than 16 sessions. The command says in one line which limits hold.
- Memory is judged by tensors, and in lessons 08 (exercise 3), 09 (3 and 5) and 12 (3 and 4) also by what the system
  counts for a rank's process, with tensors of megabytes. Not seen is what a rank hides in a file or in another process,
  and what it holds only between the moments at which a check looks. In lessons 08 (exercise 7), 09 (2 and 6), 10 (1
  to 5) and 13, tensors alone are counted: there, arrays of numpy are not seen, but by what backward must then do (10,
  exercises 3 to 5) or send (08, exercise 7).
- A check that draws nothing tries the same in each hand-in. Each says why (`fixed=` in its decorator), and none holds
  for a table of what it expects; `make audit` tries one.

[For the instructor](instructor.md) says what else the jail does not promise.

| attack | what it tries | here |
|---|---|---|
"""


def main() -> None:
    """Measure what is asked for, print the table."""

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="attacks to grade (default: all)")
    parser.add_argument("--page", action="store_true", help="write the table into the book instead")
    arguments = parser.parse_args()
    if arguments.page:
        PAGE.write_text(page(), encoding="utf-8")
        return
    for name, points in grade(
        [one for one in catalog.ATTACKS if not arguments.names or one.name in arguments.names]
    ).items():
        print(f"{name}: {points} for work worth {sum(catalog.find(name).worth.values()):g}")


def page() -> str:
    """The page of the book: every attack, and what its honest part is worth."""
    rows = []
    for attack in catalog.ATTACKS:
        here = f"{sum(attack.worth.values()):g} of {sum(lessons.full(attack.lesson).values()):g}"
        row = (f"`{attack.name}`", attack.tries, here)
        rows.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |\n")
    return HEAD.format(attacks=len(rows)) + "".join(rows)


def grade(chosen: list) -> dict[str, str]:
    """What our grader gives for each attack."""
    given = {}
    parts = [[a for a in chosen if a.lesson not in ON_RANKS]]
    for part in parts + [[a for a in chosen if a.lesson == one] for one in ON_RANKS]:
        if not part:
            continue
        with tempfile.TemporaryDirectory(prefix="attacks-") as folder:
            machine = Machine(Path(folder)).build(part, timeout=60 if part[0].lesson in ON_RANKS else 5)
            run = Run(machine, timeout=900)
            for student, attack in machine.roster.items():
                if attack:
                    given[attack.name] = f"{sum(run.points(student, attack.lesson).values()):g}"
    return given


if __name__ == "__main__":
    main()
