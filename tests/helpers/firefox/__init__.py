"""The system's Firefox, driven by puppeteer-core, which npm brings. Chromium is driven by Playwright (`browser`).

Playwright needs a Firefox of its own make, which is not in Debian; puppeteer-core takes the one that readers have.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from autograder.lesson import notebook
from tests.helpers import browser, npm

HERE = Path(__file__).parent
INSTALL = "install Firefox (Debian: apt-get install firefox-esr), or name one in the variable FIREFOX"
_FOLDER = notebook.ROOT / "_build" / "firefox"


def find() -> str | None:
    """The path of Firefox, or None."""
    return browser.installed("FIREFOX", "firefox-esr", "firefox")


def visit(pages: list[Path], width: int, ask: dict[str, str]) -> dict[Path, dict[str, Any]]:
    """What Firefox finds on each page, with windows this wide; `visit.mjs` says what that is.

    ask: name → JavaScript expression, whose values are plain data. `npm.NoPackageError` without puppeteer-core.
    """
    npm.install(HERE / "package-lock.json", _FOLDER)
    shutil.copy(HERE / "visit.mjs", _FOLDER)
    task = {"firefox": find(), "width": width, "pages": [page.as_uri() for page in pages], "ask": ask}
    made = subprocess.run(
        ["node", "visit.mjs"], cwd=_FOLDER, input=json.dumps(task), capture_output=True, text=True, timeout=3600
    )
    assert made.returncode == 0, made.stderr[-3000:]
    found = json.loads(made.stdout)
    return {page: found[page.as_uri()] for page in pages}
