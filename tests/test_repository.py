"""What the files say by which a stranger meets the repository: its version, its workflows, its forms."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import ranks
from autograder import __main__ as autograder
from autograder.lessons import notebook

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PAGES = [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *sorted((ROOT / "book" / "start").glob("*.md"))]
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.fixture
def release(tmp_path, monkeypatch):
    """The module `.ci/release.py`, for a copy of what it reads."""
    spec = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "__init__.py").write_text('__version__ = "1.2.0"\n')
    (tmp_path / "CITATION.cff").write_text("cff-version: 1.2.0\nversion: 1.2.0\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.0: third\n\n- New.\n\n## 1.1.0\n\n- Old.\n")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


def test_there_is_one_version(release, monkeypatch):
    monkeypatch.setattr(release, "ROOT", ROOT)
    assert release.version() == release.cited() == ranks.__version__
    others = [path for path in ("pyproject.toml", "_config.yml") if ranks.__version__ in (ROOT / path).read_text()]
    assert not others, f"these repeat the version, and would be forgotten: {others}"


def test_a_tag_that_fits_is_released_with_its_notes(release):
    assert release.problems("v1.2.0") == [] and release.notes("1.2.0") == "## 1.2.0: third\n\n- New."


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("ranks/__init__.py", '__version__ = "1.3.0"\n', "the tag is v1.2.0, but ranks/__init__.py says 1.3.0"),
        ("ranks/__init__.py", '__version__ = "1.2.0.dev0"\n', "1.2.0.dev0 is the version of work in progress"),
        ("CITATION.cff", "version: 1.1.0\n", "CITATION.cff says 1.1.0, ranks/__init__.py 1.2.0"),
        ("CHANGELOG.md", "## Unreleased\n\n## 1.2.0.1\n", "CHANGELOG.md has no section `## 1.2.0`"),
    ],
)
def test_a_tag_that_does_not_fit_is_refused(release, file, text, says):
    (release.ROOT / file).write_text(text)
    assert any(line.startswith(says) for line in release.problems("v1.2.0"))


def test_the_command_prints_the_notes_or_what_is_wrong():
    command = [sys.executable, str(ROOT / ".ci" / "release.py"), "v0.0.1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (
        done.returncode == 1 and done.stderr.startswith("release: the tag is v0.0.1, but") and not done.stdout.strip()
    )


def commands(text: str) -> list[list[str]]:
    """The commands in a step of a workflow or in a text, as words; what GitHub fills in is one word."""
    filled = re.sub(r"\$\{\{.*?\}\}", "X", text)
    return [shlex.split(line, comments=True) for line in filled.splitlines() if line.count("'") % 2 == 0]


def missing(words: list[str]) -> list[str]:
    """The targets of `make` and the files of this repository that a command names and that do not exist."""
    words = [word for word in words if not re.fullmatch(r"[A-Z]+=.*", word)]
    targets = words[1:] if words[:1] == ["make"] else []
    files = [word for word in words if re.fullmatch(r"(\.ci|tests|examples|book|requirements)[/.][\w./-]+", word)]
    return [word for word in targets if word not in TARGETS] + [word for word in files if not (ROOT / word).exists()]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_what_exists(path):
    jobs = yaml.safe_load(path.read_text())["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    assert all("timeout-minutes" in job for name, job in jobs.items() if name != "publish")
    assert not {need for job in jobs.values() if (need := job.get("needs"))} - set(jobs)
    words = [line for step in steps for line in commands(step.get("run", ""))]
    assert not [name for line in words for name in missing(line)]
    lock = [step["with"]["cache-dependency-path"] for step in steps if "cache-dependency-path" in step.get("with", {})]
    assert all((ROOT / name).is_file() for name in lock)


def test_a_command_that_does_not_exist_is_found():
    assert missing(["make", "setup", "chek", "BASE=x"]) == ["chek"] and missing(["bash", ".ci/runs"]) == [".ci/runs"]
    assert missing(["CI=", "make", "audit", "LESSONS=X"]) == [] and "audit" in TARGETS
    assert commands("make check # why\ngrep X '${{ vars.A }}'") == [["make", "check"], ["grep", "X", "X"]]


def test_ranks_is_tried_on_what_pyproject_allows():
    matrix = yaml.safe_load((ROOT / ".github" / "workflows" / "ranks.yml").read_text())["jobs"]["ranks"]["strategy"][
        "matrix"
    ]
    project = (ROOT / "pyproject.toml").read_text()
    assert f'requires-python = ">={matrix["python"][0]}"' in project
    assert {re.match(r"[a-z]+", name)[0] for name in matrix["os"]} == {"ubuntu", "macos", "windows"}
    assert {more.get("start") for more in matrix["include"]} >= {"spawn"}


@pytest.mark.parametrize("name", ["PULL_REQUEST_TEMPLATE.md", "SECURITY.md", "CODE_OF_CONDUCT.md"])
def test_a_policy_names_what_exists(name):
    text = (ROOT / ".github" / name).read_text()
    places = {word.rstrip("/") for word in re.findall(r"`([\w.]+/[\w./]*|[A-Z]+\.md)`", text)}
    made = {"feedback", "report.html"}
    assert not {place for place in places - made if not (ROOT / place).exists()}
    assert not [word for line in re.findall(r"`(make [^`]*)`", text) for word in missing(shlex.split(line))]
    headings = re.findall(r"\*(What the jail does not promise)\*", text)
    assert all(f"## {heading}" in (ROOT / "book" / "start" / "instructor.md").read_text() for heading in headings)


def defined_in(path: Path) -> set[str]:
    """The functions and methods of a module."""
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def test_the_functions_that_grade_a_submission_are_where_the_contributors_page_says():
    text = (ROOT / "book" / "start" / "contributor.md").read_text()
    rows = re.findall(r"^\| .+ \| `(\w+)` \| `([\w/]+\.py)` \|$", text, re.MULTILINE)
    assert len(rows) == 12
    assert not [(name, file) for name, file in rows if name not in defined_in(ROOT / "autograder" / file)]


def test_the_guide_is_short_and_names_commands_and_files_that_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert len(text.split()) <= 1257, "half of what it once had: move the rest to docstrings or the contributor's page"
    helped = subprocess.run([sys.executable, "-m", "autograder", "--help"], cwd=ROOT, capture_output=True, text=True)
    commands = set(re.findall(r"(?:`|\$ |and )autograder\s+([\w-]+)", text))
    assert commands and not [name for name in commands if not re.search(rf"^ +{name}\s", helped.stdout, re.MULTILINE)]
    assert not set(re.findall(r"\bmake ([a-z]+)\b(?= |`|\n)", text)) - TARGETS
    named = re.findall(r"`((?:autograder|book|examples|tests|solutions)/[\w/.]+)`", text)
    assert named and not [name for name in named if not (ROOT / name).exists()]


def shown(text: str) -> list[list[str]]:
    """The commands that a page shows, as words: in console blocks, and `make …` or `autograder …` in a sentence."""
    lines = []
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        lines += [line[2:] for line in block.replace("\\\n", " ").split("\n") if line[:2] in ("$ ", "# ")]
    lines += re.findall(r"`((?:make|autograder|(?:\.venv/bin/)?python) [^`…]+)`", text)
    parts = [part for line in lines for part in re.split(r"&&| & |[;|]", line.replace("\n", " "))]
    return [words for part in parts if part.count("'") % 2 == 0 and (words := shlex.split(part, comments=True))]


def unknown(words: list[str]) -> str:
    """What a command names that does not exist: a target, a file, a subcommand or an option; '' if nothing."""
    from nbgrader.apps.nbgraderapp import NbGraderApp

    if words[0] == "nbgrader" and words[1] not in NbGraderApp.subcommands | {"db": None}:
        return f"nbgrader {words[1]}"
    if words[0] == "autograder":
        try:  # a command without arguments may only be named
            autograder.parser().parse_args(words[1:] if len(words) > 2 else [*words[1:], "--help"])
        except SystemExit as end:
            return " ".join(words) if end.code else ""
    if words[0].endswith("python"):
        return words[1] if words[1].endswith(".py") and not (ROOT / words[1]).is_file() else ""
    return ", ".join(missing(words))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_shows_commands_that_exist(path):
    text = path.read_text()
    assert not [name for words in shown(text) if (name := unknown(words))]
    inside = re.findall(r"^\$ (?:autograder|nbgrader) ", text, re.MULTILINE)
    by_hub = path.stem == "hub"  # which starts the instructor's terminal in the environment
    assert not inside or by_hub or "source .venv/bin/activate" in text, "in a fresh shell, these commands fail"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("make lab && make grades", "grades"),
        ("autograder import x.zip 03 --logins a.csv", "autograder import x.zip 03 --logins a.csv"),
        ("autograder regrades", "autograder regrades"),
        ("nbgrader colect 03_step --update", "nbgrader colect"),
        (".venv/bin/python benchmarks/gradings.py --table", "benchmarks/gradings.py"),
        ("bash examples/hup/start", "examples/hup/start"),
    ],
)
def test_a_command_of_a_page_that_does_not_exist_is_found(line, name):
    assert [one for words in shown(f"```console\n$ {line}\n```\n") if (one := unknown(words))] == [name]


def test_outside_the_environment_one_line_says_what_to_do():
    done = subprocess.run([sys.executable, "-S", "-m", "autograder", "grade"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "source .venv/bin/activate" in done.stderr


def test_the_tables_of_seconds_follow_from_what_was_measured():
    spec = importlib.util.spec_from_file_location("grading_cost", ROOT / "benchmarks" / "grading.py")
    grading = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(grading)
    right, others = grading.tables()
    for table in (right, others):
        assert "\n".join(["", *table, ""]) in grading.PAGE.read_text(), "run `python benchmarks/grading.py --table`"
    assert [row.split(" | ")[0] for row in right[2:]] == [f"| {name[:2]}" for name in notebook.lessons()]
    row = {"processor_s": 6.0, "without_others_s": 8.0, "of_this_serial_s": 1.5}
    assert [grading.minutes(row, cores) for cores in (2, 4, 8)] == [8.0, 4.0, 3.0]
