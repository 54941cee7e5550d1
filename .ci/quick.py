"""`make quick`: run only the tests of files that have changed since a commit (BASE, by default HEAD).

A lesson's tests look at its style, its solution and a sample of its known answers. Other code has test files of its
own. A changed figure is driven in Chromium, on the pages that show it, for which the book is built. For nothing else is
it built: `make book` does that, and `make thorough` looks at its pages.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from autograder.lessons import notebook  # noqa: E402

#: Patterns of a lesson's own files; the group is its name.
LESSON_FILES = (
    r"(?:solutions|notebooks)/(\d\d_\w+)/",
    r"book/(\d\d_\w+)\.md",
)

#: Pattern of a changed file → the test files for it.
TESTS = (
    (
        r"ranks/(cluster|model)\.py|planner/|benchmarks/(planner|published_runs)",
        "ranks/test_cluster ranks/test_model test_planner test_plan_page test_one_run",
    ),
    (r"book/planning/|book/_ext/(plan_page|running_model)|book/(plan|one_run)\.md", "test_plan_page test_one_run"),
    (r"ranks/", "ranks/test_ranks ranks/test_hangs test_progress test_packages"),
    (
        r"pyproject\.toml|requirements|MANIFEST|CITATION|\.github/",
        "test_ranks_alone test_packages test_handout test_repository",
    ),
    (r"_config\.yml|README\.md|book/_ext/", "test_published"),
    (r"\.ci/quick\.py", "test_quick"),
    (r"\.ci/page\.py", "test_page"),
    (r"CONTRIBUTING|book/start/contributor|autograder/grading/|autograder/__main__", "test_repository"),
    (r"\.ci/release\.py|Makefile|CHANGELOG", "test_repository"),
    (r"autograder/lessons/", "test_release test_skippable test_lessons test_keys test_packages"),
    (r"autograder/answers/", "test_answers test_audit test_packages"),
    (r"autograder/checking/", "test_check test_cases test_faults test_replay test_packages"),
    (r"autograder/(properties|checks/__init__)\.py", "test_properties test_checklist test_lessons test_packages"),
    (r"autograder/soundness/", "test_audit test_packages"),
    (r"autograder/grading/(importing|handed_in|nbgrader/|course)", "test_by_hand test_importing test_reading"),
    (r"autograder/grading/jail/", "test_wire test_jail test_handles test_jail_kernel test_system_calls test_packages"),
    (
        r"autograder/grading/",
        "test_grading test_workers test_nbgrader_traps test_carried_forward test_checklist test_retry test_packages",
    ),
    (r"autograder/insight/", "test_report test_lms test_regrade"),
    (r"autograder/authoring/", "test_where test_new_lesson test_new_exercise test_lessons test_handout test_packages"),
    (r"autograder/checks/|solutions/\d\d_\w+/(checks|right\.py)", "test_packages"),
    (r"solutions/|autograder/checks/|_toc\.yml|README\.md|book/index\.md", "test_lessons"),
    (r"book/_ext/", "test_figures"),
    (r"book/(exercise|_ext)/", "test_py_exercise"),
    (r"examples/hub/", "test_hub"),
    (r"tests/((?:ranks/)?test_\w+)\.py", r"\1"),
)

#: The directive that puts a figure on a page.
_FIGURE = re.compile(r"^:+\{live-figure\} (\w+)", re.MULTILINE)


def changed_files(base: str) -> list[str]:
    """The files that differ from a commit, and those that git does not track yet."""
    commands = (["diff", "--name-only", base, "--"], ["ls-files", "--others", "--exclude-standard"])
    texts = []
    for command in commands:
        done = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"make quick: git does not know {base!r}: give another commit, as in `make quick BASE=main`")
        texts.append(done.stdout)
    return sorted(set("".join(texts).splitlines()))


def lessons_of(files: list[str]) -> list[str]:
    """The lessons that these files belong to."""
    found = {match[1] for file in files for pattern in LESSON_FILES if (match := re.match(pattern, file))}
    return [name for name in notebook.lessons() if name in found]


def tests_of(files: list[str]) -> list[str]:
    """The test files for these files, with the tests of style."""
    names = {"test_style"}
    for file in files:
        for pattern, tests in TESTS:
            if match := re.match(pattern, file):
                names |= set(match.expand(tests).split())
    return [f"tests/{name}.py" for name in sorted(names) if (ROOT / "tests" / f"{name}.py").is_file()]


def figures_of(files: list[str]) -> str | None:
    """Which tests in `test_figures.py` look at these files, for pytest's `-k`: "" for all of them, None for no test.

    A file that no chapter names, such as `stepper.js`, belongs to every figure.
    """
    changed = [file for file in files if re.match(r"book/(figures/|_ext/live_figure\.py)", file)]
    if not changed:
        return None
    shown = {path.stem: set(_FIGURE.findall(path.read_text(encoding="utf-8"))) for path in (ROOT / "book").glob("*.md")}
    names = {re.split(r"[/.]", file)[-2] for file in changed}
    if names - set().union(*shown.values()):
        return ""
    pages = sorted(f"chapter_{page[:2]}" for page, figures in shown.items() if names & figures and page[:2].isdigit())
    return " or ".join([*pages, "every_figure", *(["at_home"] if names & shown["index"] else [])])


def main(base: str, with_figures: bool = True) -> int:
    """Run the tests; their exit status."""
    files = changed_files(base)
    if not files:
        print(f"Nothing has changed since {base}. `make quick BASE=HEAD~1` tests the changes of the last commit.")
        return 0
    lessons = lessons_of(files)
    print(f"changed: {len(files)} files; lessons: {', '.join(lessons) or 'none'}", flush=True)
    pytest = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup"]
    status = subprocess.run([*pytest, "-m", "not thorough and not slow", *tests_of(files)], cwd=ROOT).returncode
    if lessons:
        ids = " or ".join(f"{lesson} or {lesson[:2]}-ex" for lesson in lessons)
        select = [
            "-k",
            f"({ids}) and not other_number",
            "-m",
            "not thorough",
            "tests/test_solutions.py",
            "tests/test_audit.py",
        ]
        status = subprocess.run([*pytest, *select], cwd=ROOT).returncode or status
    figures = figures_of(files) if with_figures else None
    if figures is not None:
        print("building the book for the tests of the figures", flush=True)
        select = [*(["-k", figures] if figures else []), "-m", "thorough", "tests/test_figures.py"]
        status = subprocess.run([*pytest, *select], cwd=ROOT).returncode or status
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "HEAD", "--no-figures" not in sys.argv))
