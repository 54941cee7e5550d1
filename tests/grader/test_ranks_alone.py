"""`ranks` as a library of its own: what is declared, what it loads, its types, its example and its reference page."""

from __future__ import annotations

import ast
import dataclasses
import email
import functools
import inspect
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

import jupytext
import nbformat
import pytest
import yaml
from nbclient import NotebookClient
from packaging.requirements import Requirement

import ranks

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
EXTRAS_TEXT = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2].partition("\n[")[0]
EXAMPLE = ROOT / "examples" / "ranks" / "heat.ipynb"

#: The files of a part, and where the packages that it imports are declared.
PARTS = {
    "ranks": (["ranks/*.py", "machines/*.py", "examples/ranks/*.ipynb"], "dependencies"),
    "students": (["notebooks/*/*.ipynb", "notebooks/*/*.py"], "student"),
    "autograder": (
        [
            "autograder/**/*.py",
            "nbgrader_config.py",
            "solutions/*/*.ipynb",
            "solutions/**/*.py",
            "benchmarks/*.py",
            "examples/class/*.py",
        ],
        "requirements.txt",
    ),
    "book": (
        ["book/*.md", "book/start/*.md", "book/reference/*.md", "book/_ext/*.py", "_config.yml"],
        "requirements.txt",
    ),
    "planner": (["planner/*.py"], "dependencies"),
    "tests": (["tests/**/*.py", ".ci/*.py"], "dev"),
}

#: Modules of the course's own: the capstone's pieces and its recorder of faults, and lesson 06's model and data.
WRITTEN = {"faults", "pieces", "toy"}


def normal(name: str) -> str:
    """A package's name as pip compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def listed() -> list[tuple[Requirement, str]]:
    """The packages in requirements.txt, each with the reason that stands beside it."""
    lines = (line for line in (ROOT / "requirements.txt").read_text().splitlines() if line[0] not in "#-")
    return [(Requirement(package), reason.strip()) for package, _, reason in (line.partition("#") for line in lines)]


def declared(place: str) -> set[str]:
    """The packages that this place names: "dependencies" or an extra in pyproject.toml, or requirements.txt.

    An extra adds to the dependencies, requirements.txt to the extra `student`, and the extra `dev` to requirements.txt.
    """
    if place == "requirements.txt":
        return declared("student") | {normal(package.name) for package, _ in listed()}
    more = {
        "dependencies": set(),
        "student": {"ipython"},
        "dev": declared("requirements.txt") if place == "dev" else set(),
    }
    packages = PROJECT["dependencies"] + EXTRAS.get(place, [])
    return {normal(Requirement(package).name) for package in packages} | more[place]


@functools.cache
def allowed(place: str) -> set[str]:
    """What may be imported: of `ranks` and the notebooks what is named, elsewhere also what that brings along."""
    return declared(place) if place in ("dependencies", "student") else needed_by(declared(place))


@functools.cache
def codes(path: Path) -> list[str]:
    """The Python code in a file: a script, the cells of a notebook or of a page."""
    if path.suffix == ".py":
        return [path.read_text()]
    if path.suffix == ".yml":
        return [f"import {name}" for name in yaml.safe_load(path.read_text())["sphinx"]["config"]["extensions"]]
    if path.suffix not in (".ipynb", ".md"):
        return []
    cells = jupytext.read(path, fmt="md:myst" if path.suffix == ".md" else "ipynb").cells
    return [re.sub(r"^[%!].*", "", cell.source, flags=re.MULTILINE) for cell in cells if cell.cell_type == "code"]


def imports(code: str) -> Iterator[tuple[int, str]]:
    """(line, module) for each absolute import, lazy ones included."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, node.module


def is_ours(name: str, path: Path) -> bool:
    """Is this top-level module part of Python or of this repository?"""
    folders = (path.parent, ROOT / "tests", ROOT / "book" / "_ext")
    return (
        name in sys.stdlib_module_names | WRITTEN | {path.parent.name}
        or name in ("ranks", "machines", "autograder", "planner", "benchmarks", "tests")
        or any((folder / f"{name}.py").exists() for folder in folders)
        or (path.parent / name / "__init__.py").exists()
        or (path.name, name) == ("setup.py", "setuptools")  # declared beside it, as what builds the package
    )


@functools.cache
def providers() -> dict[str, set[str]]:
    """Top-level module → the installed packages that have it."""
    return {name: set(map(normal, packages)) for name, packages in metadata.packages_distributions().items()}


def undeclared(path: Path, code: str, place: str) -> Iterator[str]:
    """A sentence for each import of a package that is not declared, with what to add where."""
    for line, module in imports(code):
        name = module.split(".")[0]
        packages = providers().get(name, {normal(name)})
        if not is_ours(name, path) and not packages & allowed(place):
            line = f"line {line}" if path.suffix == ".py" else f"line {line} of a cell"
            where = place if place == "requirements.txt" else f"pyproject.toml ({place})"
            add = f"add {' or '.join(sorted(packages))} to {where}, install it, and run `make lock`"
            yield f"{path.relative_to(ROOT)}, {line}, imports {module}: {add}"


@pytest.mark.parametrize("part", PARTS)
def test_what_is_imported_is_declared(part):
    patterns, place = PARTS[part]
    files = sorted({path for pattern in patterns for path in ROOT.glob(pattern)})
    found = [(path, code) for path in files for code in codes(path)]
    assert found
    problems = [problem for path, code in found for problem in undeclared(path, code, place)]
    assert not problems, "\n".join(problems)


def test_an_undeclared_import_is_found():
    """The test above would pass on anything if this one did not."""
    path = ROOT / "ranks" / "launch.py"
    code = "import os\nimport torch.distributed\n\n\ndef f():\n    from nbgrader.api import Gradebook\n"
    (problem,) = undeclared(path, code, "dependencies")
    assert problem.startswith("ranks/launch.py, line 6, imports nbgrader.api: add nbgrader to pyproject.toml (dep")
    assert not list(undeclared(path, code, "requirements.txt"))
    (problem,) = undeclared(path, "import no_such_package", "requirements.txt")
    assert problem.endswith("add no-such-package to requirements.txt, install it, and run `make lock`")
    assert list(undeclared(path, "import scipy", "student")), "it comes with scikit-learn, but no notebook may need it"


#: What is declared as (where, package, reason).
DECLARED = [
    *(("requirements.txt", package, reason) for package, reason in listed()),
    *(("pyproject.toml", Requirement(package), "") for package in PROJECT["dependencies"]),
    *(
        ("pyproject.toml", Requirement(package), reason)
        for package, reason in re.findall(r'^    "([^"]+)",(?:  # (.+))?$', EXTRAS_TEXT, re.MULTILINE)
    ),
]


def test_the_requirements_are_few_and_the_lock_keeps_their_ranges():
    assert len((ROOT / "requirements.txt").read_text().splitlines()) <= 20
    versions = dict(line.split("==") for line in (ROOT / "requirements.lock").read_text().splitlines())
    locked = {normal(name): version for name, version in versions.items()}
    for where, package, _ in DECLARED:
        assert ">=" in str(package.specifier), f"{where}: {package} has no range"
        version = locked.get(normal(package.name))
        assert version, f"{where} names {package.name}, requirements.lock does not: install it, and run `make lock`"
        assert package.specifier.contains(version), f"{where} wants {package}, requirements.lock has {version}"


def test_the_lock_holds_what_the_requirements_bring_and_nothing_else():
    locked = {normal(line.partition("==")[0]) for line in (ROOT / "requirements.lock").read_text().splitlines()}
    needed = needed_by(declared("dev"))
    here = {normal(found.metadata["Name"]) for found in metadata.distributions()}
    if metadata.version("numpy") not in re.findall(r"^numpy==(.+)$", (ROOT / "requirements.lock").read_text(), re.M):
        pytest.skip("the lock is not what is installed")
    left_out = re.compile(r"nvidia-|cuda-|(triton|pip|setuptools|wheel)$")  # by `make lock`
    assert not {name for name in needed & here - locked if not left_out.match(name)}, "run `make lock`"
    assert not locked & here - needed, "nothing needs these: take them out of the environment and run `make lock`"


def test_nothing_is_required_that_is_not_used():
    """What no code imports has its reason beside it."""
    used = set()
    for patterns, _ in PARTS.values():
        for path in {path for pattern in patterns for path in ROOT.glob(pattern)}:
            modules = {module.split(".")[0] for code in codes(path) for _, module in imports(code)}
            used |= {package for module in modules for package in providers().get(module, ())}
    idle = [
        f"{where}: {package}" for where, package, reason in DECLARED if not reason and normal(package.name) not in used
    ]
    assert not idle, "nothing imports these; take them out, or say beside them what they are for: " + ", ".join(idle)


def test_the_tests_of_ranks_need_nothing_else():
    files = sorted((ROOT / "tests" / "ranks").glob("*.py"))
    beside = {path.stem for path in files}
    allowed = sys.stdlib_module_names | {"ranks", "pytest", *declared("dependencies"), *beside}
    assert len(files) > 2
    for path in files:
        others = {module for _, module in imports(path.read_text()) if module.split(".")[0] not in allowed}
        assert not others, f"{path.name} imports {', '.join(sorted(others))}: move that test out of tests/ranks"


def test_the_lower_bounds_are_versions_that_a_workflow_tries():
    (versions,) = re.findall(r"versions: (\w.*)", (ROOT / ".github" / "workflows" / "ranks.yml").read_text())
    tried = dict(version.split("==") for version in versions.split())
    bounds = dict(requirement.split(">=") for requirement in PROJECT["dependencies"])
    assert tried.keys() == bounds.keys()
    assert all(f"{tried[name]}.".startswith(f"{bounds[name]}.") for name in bounds)


def test_every_locked_version_installs_on_the_oldest_python():
    """Debian 12 has Python 3.11.2; a lock that was written with a later one must not shut it out."""
    oldest = [*map(int, PROJECT["requires-python"].removeprefix(">=").split(".")), 0]
    locked = [line.partition("==")[0] for line in (ROOT / "requirements.lock").read_text().splitlines()]
    too_new = {}
    for package in locked:
        try:
            wants = metadata.metadata(package).get("Requires-Python") or ""
        except metadata.PackageNotFoundError:  # on another system
            continue
        if any([*map(int, least.split("."))] > oldest for least in re.findall(r">=\s*(\d+(?:\.\d+)*)", wants)):
            too_new[package] = wants
    assert not too_new, f"these do not install on Python {'.'.join(map(str, oldest))}: lock older versions"


#: A module that Python imports when it starts; afterwards these others seem not to be installed.
HIDE = """
import sys

class Hide:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {names!r} else self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Hide, sys.meta_path)
"""

ALONE = """
import torch.distributed as dist
import ranks

def worker(rank, world_size):
    try:
        import nbgrader
    except ModuleNotFoundError:
        return rank, ranks_meet()

def ranks_meet():
    import torch
    x = torch.ones(2)
    dist.all_reduce(x)
    return x.tolist()

results = ranks.run(worker, world_size=2)
assert results.timeline().alt.startswith("Timeline of 2 ranks")
try:
    ranks.run(lambda rank, world_size: rank or dist.barrier(), world_size=2)
except ranks.HangError as error:
    print(results, error.headline)
"""


def needed_by(packages: Iterable[str]) -> set[str]:
    """These packages and those that they need on this system."""
    found, todo = set(), [(package, "") for package in packages]
    while todo:
        package, extra = todo.pop()
        if (package, extra) in found:
            continue
        found.add((package, extra))
        try:
            requirements = [Requirement(line) for line in metadata.requires(package) or []]
        except metadata.PackageNotFoundError:  # on another system
            continue
        wanted = (need for need in requirements if not need.marker or need.marker.evaluate({"extra": extra}))
        todo += [(normal(need.name), more) for need in wanted for more in ("", *need.extras)]
    return {package for package, _ in found}


def test_ranks_works_without_the_course(tmp_path):
    """As after `pip install .`: what only the extras need is not there, for the ranks neither."""
    base = needed_by(declared("dependencies"))
    assert not base & {"nbgrader", "ipython", "nbformat", "jupyter-client", "traitlets"}
    hidden = {"autograder"} | {
        name
        for name, packages in providers().items()
        if not packages & base
        and name not in ("ranks", "setuptools", "_distutils_hack", "pkg_resources")
        and not name.startswith("__editable__")
    }
    assert {"autograder", "nbgrader", "IPython", "tqdm", "scipy"} <= hidden and not hidden & {"torch", "ranks", "numpy"}
    (tmp_path / "sitecustomize.py").write_text(HIDE.format(names=hidden))
    (tmp_path / "script.py").write_text(ALONE)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "RANKS_DEBUG": "1"}
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
    assert done.stdout == "[(0, [2.0, 2.0]), (1, [2.0, 2.0])] rank 0 waits forever\n", done.stderr


#: Builds both kinds of package without a network.
BUILD = "from setuptools import build_meta; build_meta.build_wheel('made'); build_meta.build_sdist('made')"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of a wheel and a source distribution, made in a copy of the repository in which others were made."""
    root = tmp_path_factory.mktemp("repository")
    left_out = shutil.ignore_patterns(".*", "_build", "build", "__pycache__", "*.egg-info", "node_modules", "submitted")
    shutil.copytree(ROOT, root, ignore=left_out, dirs_exist_ok=True)
    shutil.copytree(root / "solutions", root / "build" / "lib" / "solutions")
    (root / "ranks.egg-info").mkdir()
    (root / "ranks.egg-info" / "SOURCES.txt").write_text("autograder/__init__.py\n")
    done = subprocess.run([sys.executable, "-c", BUILD], cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return root / "made"


def test_the_wheel_holds_ranks_and_machines_alone(built):
    """Whatever else it held, such as answers and hidden tests, each student who installs it would have."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
    code = [*(ROOT / "ranks").glob("*.py"), ROOT / "ranks" / "py.typed", *(ROOT / "machines").glob("*.py")]
    assert sorted(names) == sorted(str(path.relative_to(ROOT)) for path in code)


def test_the_wheel_says_what_it_is(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (file,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        about = email.message_from_bytes(archive.read(file))
        licenses = [name for name in archive.namelist() if "LICENSE" in name]
    assert (about["Name"], about["Version"]) == ("ranks", ranks.__version__)
    assert about["Summary"] == PROJECT["description"] and about["Requires-Python"] == PROJECT["requires-python"]
    assert about.get_payload().startswith("# ranks\n") and len(licenses) == 1 and licenses[0].endswith("LICENSE-CODE")
    needs = {line for line in about.get_all("Requires-Dist") if "extra ==" not in line}
    assert needs == set(PROJECT["dependencies"]) and set(about.get_all("Provides-Extra")) == {"student", "dev"}


def test_the_examples_of_its_readme_run(tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "ranks" / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "script.py").write_text("\n\n".join(blocks))
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900)
    first, *rest = done.stdout.splitlines()
    assert first == "[6.0, 6.0]" and any(line.startswith("ranks 0, 1 and 3 wait forever") for line in rest), done.stderr


def test_the_source_distribution_holds_no_answers(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    about = {"PKG-INFO", "README.md", "pyproject.toml", "setup.cfg", *(path.name for path in ROOT.glob("LICENSE*"))}
    assert about <= names
    strange = {name for name in names - about if not name.startswith(("ranks/", "machines/", "ranks.egg-info/"))}
    assert not strange and "ranks/launch.py" in names


def test_the_clone_is_on_the_path_of_an_editable_install():
    """`autograder` is in no package, but `nbgrader_config.py` and the solutions import it, wherever they run."""
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"] == {"": "."}
    code = "import autograder, ranks; print(autograder.__file__, ranks.__file__, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True, timeout=100)
    places = {Path(line).parent.parent.resolve() for line in done.stdout.split()}
    assert len(places) == 1 and (places.pop() / "pyproject.toml").is_file(), done.stderr


def test_the_example_is_stored_clean():
    text = EXAMPLE.read_text()
    notebook = nbformat.reads(text, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert text == nbformat.writes(notebook) + "\n" and (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert not [cell.id for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")]
    assert all(re.fullmatch(r"heat(-[a-z]+)+", cell.id) for cell in notebook.cells)
    used = {module.split(".")[0] for code in codes(EXAMPLE) for _, module in imports(code)}
    assert used <= {"ranks", "torch", "matplotlib"}


@pytest.mark.slow
@pytest.mark.thorough
def test_the_example_runs(tmp_path):
    notebook = nbformat.read(EXAMPLE, as_version=4)
    NotebookClient(notebook, timeout=1800, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any(" forever\n  rank 0 " in output.get("text", "") for output in shown), "a hang is explained"
    assert sum("text/html" in output.get("data", {}) for output in shown) == 3, "three figures"
    assert not list(tmp_path.iterdir())


def test_the_reference_page_names_all_that_is_public():
    page = (ROOT / "book" / "reference" / "ranks.md").read_text()
    words = set(re.findall(r"`([\w.]+)(?:\([^`]*\))?`", page))
    fields = {field.name for kind in (ranks.Message, ranks.Span) for field in dataclasses.fields(kind)}
    methods = {name for kind in (ranks.Results, ranks.Ledger, ranks.Message) for name in public(kind)}
    attributes = {*vars(ranks.RankError(0, "", "")), *vars(ranks.HangError("", [], "", None))}
    names = {*ranks.__all__, *inspect.signature(ranks.run).parameters, *fields, *methods, *attributes}
    assert not names - words, "book/reference/ranks.md does not describe these"


def public(kind: type) -> list[str]:
    """The methods and properties that a class of ours defines itself."""
    return [n for n, value in vars(kind).items() if n[0] != "_" and (callable(value) or isinstance(value, property))]
