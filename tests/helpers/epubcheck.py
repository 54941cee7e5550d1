"""epubcheck, by which stores check an EPUB (https://www.w3.org/publishing/epubcheck/)."""

from __future__ import annotations

import zipfile

from tests.helpers import browser

INSTALL = "install epubcheck (Debian: apt-get install epubcheck), or name one in the variable EPUBCHECK"


def find() -> str | None:
    """The path of epubcheck, or None."""
    return browser.installed("EPUBCHECK", "epubcheck")


def command() -> list[str]:
    """What starts it. Debian's is a program of Java, which runs by itself only where the kernel knows such files."""
    path = find()
    assert path is not None, INSTALL
    return ["java", "-jar", path] if zipfile.is_zipfile(path) else [path]
