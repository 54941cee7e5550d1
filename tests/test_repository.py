"""What the files say by which a stranger meets the repository: its version, its workflows, its forms."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from autograder import __main__ as autograder
from autograder.lesson import notebook

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")),
    *sorted((ROOT / ".github").glob("*.md")),
    *sorted((ROOT / "book" / "start").glob("*.md")),
]
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def module_at(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"at_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def release(tmp_path, monkeypatch):
    """The module `.ci/release.py`, for a copy of what it reads."""
    module = module_at(ROOT / ".ci" / "release.py")
    (tmp_path / "CITATION.cff").write_text("cff-version: 1.2.0\nversion: 1.2.0\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.0: third\n\n- New.\n\n## 1.1.0\n\n- Old.\n")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


def test_there_is_one_version(release, monkeypatch):
    monkeypatch.setattr(release, "ROOT", ROOT)
    others = [path for path in ("pyproject.toml", "_config.yml") if release.version() in (ROOT / path).read_text()]
    assert not others, f"these repeat the version, and would be forgotten: {others}"


def test_a_tag_that_fits_is_released_with_its_notes(release):
    assert release.problems("v1.2.0") == [] and release.notes("1.2.0") == "## 1.2.0: third\n\n- New."


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("CITATION.cff", "version: 1.3.0\n", "the tag is v1.2.0, but CITATION.cff says 1.3.0"),
        ("CITATION.cff", "version: 1.2.0.dev0\n", "1.2.0.dev0 is the version of work in progress"),
        ("CHANGELOG.md", "## Unreleased\n\n## 1.2.0.1\n", "CHANGELOG.md has no section `## 1.2.0`"),
    ],
)
def test_a_tag_that_does_not_fit_is_refused(release, file, text, says):
    (release.ROOT / file).write_text(text)
    assert any(line.startswith(says) for line in release.problems("v1.2.0"))


def test_the_command_prints_the_notes_or_what_is_wrong():
    command = [sys.executable, str(ROOT / ".ci" / "release.py"), "v0.0.1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and not done.stdout.strip()
    assert done.stderr.startswith("release: the tag is v0.0.1, but")


def shown(text: str) -> list[list[str]]:
    """The commands that a page shows, as words: in console blocks, and `make …` or `autograder …` in a sentence."""
    lines = []
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        lines += [line[2:] for line in block.replace("\\\n", " ").split("\n") if line[:2] in ("$ ", "# ")]
    lines += re.findall(r"`((?:make|autograder|(?:\.venv/bin/)?python) [^`…]+)`", text)
    return commands(*(part for line in lines for part in re.split(r"&&| & |[;|]", line.replace("\n", " "))))


def run_by(workflow: Path) -> list[list[str]]:
    """The commands of a workflow's steps, as words; what GitHub fills in is one word."""
    steps = [step for job in yaml.safe_load(workflow.read_text())["jobs"].values() for step in job["steps"]]
    filled = re.sub(r"\$\{\{.*?\}\}", "X", "\n".join(step.get("run", "") for step in steps))
    return commands(*filled.splitlines())


def commands(*lines: str) -> list[list[str]]:
    split = [shlex.split(line, comments=True) for line in lines if line.count("'") % 2 == 0]
    return [words for words in split if words]


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
    if words[0].endswith("python") and words[1].endswith(".py") and not (ROOT / words[1]).is_file():
        return words[1]
    words = [word for word in words if not re.fullmatch(r"[A-Z]+=.*", word)]
    targets = set(words[1:]) - TARGETS if words[:1] == ["make"] else set()
    files = [word for word in words if re.fullmatch(r"((\.ci|tests|examples|book)/|requirements\.)[\w./-]+", word)]
    return ", ".join([*targets, *(word for word in files if not (ROOT / word).exists())])


@pytest.mark.parametrize("path", [*WORKFLOWS, *PAGES], ids=lambda path: path.stem)
def test_a_page_shows_and_a_workflow_runs_commands_that_exist(path):
    found = run_by(path) if path in WORKFLOWS else shown(path.read_text())
    assert not [name for words in found if (name := unknown(words))]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_names_files_that_exist_and_has_its_commands_found(path):
    text = path.read_text()
    named = re.findall(r"`((?:\.ci|autograder|book|examples|tests|solutions)/[\w/.]+|(?!AGENTS)[A-Z]+\.md)`", text)
    assert not [name for name in named if not (ROOT / name).exists()]
    inside = re.findall(r"^\$ (?:autograder|nbgrader) ", text, re.MULTILINE)
    in_it = path.stem in ("hub", "CONTRIBUTING")  # the hub starts the instructor's terminal in the environment
    assert not inside or in_it or "source .venv/bin/activate" in text, "in a fresh shell, these commands fail"


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("make lab && make grades", ["grades"]),
        ("make setup chek BASE=x", ["chek"]),
        ("CI= make audit LESSONS=X # why", []),
        ("bash .ci/runs", [".ci/runs"]),
        ("autograder import x.zip 03 --logins a.csv", ["autograder import x.zip 03 --logins a.csv"]),
        ("autograder regrades", ["autograder regrades"]),
        ("nbgrader colect 03_step --update", ["nbgrader colect"]),
        (".venv/bin/python benchmarks/gradings.py --table", ["benchmarks/gradings.py"]),
        ("bash examples/hup/start", ["examples/hup/start"]),
        (".venv/bin/python -m pytest tests/rank", ["tests/rank"]),
    ],
)
def test_a_command_that_does_not_exist_is_found(line, names):
    assert [one for words in shown(f"```console\n$ {line}\n```\n") if (one := unknown(words))] == names


def test_the_oldest_python_that_is_allowed_is_tried():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ranks.yml").read_text())["jobs"]
    oldest = jobs["ranks"]["strategy"]["matrix"]["python"][0]
    assert f'requires-python = ">={oldest}"' in (ROOT / "pyproject.toml").read_text()


def test_the_functions_that_grade_a_submission_are_where_the_contributors_page_says():
    text = (ROOT / "book" / "start" / "contributor.md").read_text()
    rows = re.findall(r"^\| .+ \| `(\w+)` \| `([\w/]+\.py)` \|$", text, re.MULTILINE)
    assert len(rows) == 12
    assert not [row for row in rows if f"def {row[0]}(" not in (ROOT / "autograder" / row[1]).read_text()]


def test_outside_the_environment_one_line_says_what_to_do():
    done = subprocess.run([sys.executable, "-S", "-m", "autograder", "grade"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "source .venv/bin/activate" in done.stderr


def test_the_tables_of_seconds_follow_from_what_was_measured():
    grading = module_at(ROOT / "benchmarks" / "grading.py")
    right, others = grading.tables()
    for table in (right, others):
        assert "\n".join(["", *table, ""]) in grading.PAGE.read_text(), "run `python benchmarks/grading.py --table`"
    assert [row.split(" | ")[0] for row in right[2:]] == [f"| {name[:2]}" for name in notebook.lessons()]
    row = {"processor_s": 6.0, "without_others_s": 8.0, "of_this_serial_s": 1.5}
    assert [grading.minutes(row, cores) for cores in (2, 4, 8)] == [8.0, 4.0, 3.0]
