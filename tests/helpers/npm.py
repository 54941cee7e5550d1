"""Files of npm packages that tests need, fetched once, below `_build/npm`."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import NamedTuple

from autograder.lessons import notebook

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


def get(package: Package) -> Path:
    """The folder with a package's files, fetched now if it is not there; NoPackageError says why it cannot be."""
    target = _FOLDER / re.sub(r"\W+", "-", package.name).strip("-")
    if target.is_dir():
        return target
    if not shutil.which("npm"):
        raise NoPackageError(INSTALL)
    _FOLDER.mkdir(parents=True, exist_ok=True)
    command = ["npm", "pack", package.name]
    made = subprocess.run(command, cwd=_FOLDER, capture_output=True, text=True, timeout=300)
    if made.returncode and re.search(r"ENOTFOUND|EAI_AGAIN|ECONN|ETIMEDOUT|ENETUNREACH|ERR_SOCKET", made.stderr):
        raise NoPackageError(f"npm reaches no registry to fetch {package.name} from")
    assert made.returncode == 0, f"npm cannot fetch {package.name}:\n{made.stderr[-2000:]}"
    archive = _FOLDER / made.stdout.split()[-1]
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
