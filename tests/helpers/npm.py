"""What tests need of npm: files of packages, and programs with all that they need; fetched once, below `_build`."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from autograder.lesson import notebook

INSTALL = "install npm (Debian: apt-get install npm)"
_FOLDER = notebook.ROOT / "_build" / "npm"


class Package(NamedTuple):
    """An npm package with its digest, the folder in it that we need, and a pattern for the files of that folder."""

    name: str
    sha512: str
    folder: str
    files: str


class NoPackageError(RuntimeError):
    """There is no npm, or npm has no network."""


@contextlib.contextmanager
def or_skip() -> Iterator[None]:
    """Within: a test that npm cannot serve is skipped and says why; in CI, where npm has to be installed, it fails."""
    try:
        yield
    except NoPackageError as error:
        if os.environ.get("CI") and not shutil.which("npm"):
            raise
        pytest.skip(str(error))


def install(lock: Path, target: Path) -> Path:
    """The folder `target/node_modules` with what the lock file names, installed now if it is not there.

    NoPackageError says why it cannot be.
    """
    done = target / "node_modules" / ".package-lock.json"
    if not done.is_file() or (target / lock.name).read_bytes() != lock.read_bytes():
        if not shutil.which("npm"):
            raise NoPackageError(INSTALL)
        target.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", lock.name):
            shutil.copy(lock.parent / name, target)
        _npm(["ci", "--no-audit", "--no-fund", "--ignore-scripts"], target)
    return target / "node_modules"


def get(package: Package) -> Path:
    """The folder with a package's files, fetched now if it is not there; NoPackageError says why it cannot be."""
    target = _FOLDER / re.sub(r"\W+", "-", package.name).strip("-")
    if target.is_dir():
        return target
    if not shutil.which("npm"):
        raise NoPackageError(INSTALL)
    _FOLDER.mkdir(parents=True, exist_ok=True)
    archive = _FOLDER / _npm(["pack", package.name], _FOLDER).split()[-1]
    assert base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode() == package.sha512, archive
    whole = target.with_suffix(".new")
    shutil.rmtree(whole, ignore_errors=True)
    whole.mkdir()
    with tarfile.open(archive) as files:
        for member in files:
            folder, _, name = member.name.rpartition("/")
            if member.isfile() and folder == package.folder and re.fullmatch(package.files, name):
                (whole / name).write_bytes(files.extractfile(member).read())
    archive.unlink()
    whole.rename(target)
    return target


def _npm(arguments: list[str], folder: Path) -> str:
    """Run npm in a folder; what it prints. NoPackageError where it reaches no registry."""
    made = subprocess.run(["npm", *arguments], cwd=folder, capture_output=True, text=True, timeout=3600)
    if made.returncode and re.search(r"ENOTFOUND|EAI_AGAIN|ECONN|ETIMEDOUT|ENETUNREACH|ERR_SOCKET", made.stderr):
        raise NoPackageError(f"npm reaches no registry for `npm {' '.join(arguments)}`")
    assert made.returncode == 0, f"`npm {' '.join(arguments)}` failed:\n{made.stderr[-2000:]}"
    return made.stdout
