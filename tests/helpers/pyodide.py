"""Packages of Pyodide, fetched from npm instead of the public server that the book names.

FULL is old, but holds numpy. CURRENT is the one that `_config.yml` names, without any packages: npm has no more of it.
"""

from __future__ import annotations

from tests.helpers.npm import Package

FULL = Package(
    "@pyodide/pyodide@0.17.1",
    "VCeLGQ9NpydiVNUiTWexZEfErQqqo0I8050p5uTxHRlmI4jA1cXt0WOR3pq5WjOCtApkCCT4qV1per1nMOYoFw==",
    "package/dist",
    r"(pyodide|numpy)\.[\w.]+|packages\.json",
)
CURRENT = Package(
    "pyodide@314.0.7",
    "0YvXxEhfEdpLfb/XkM2BFAeMROq0iMUX2bzzH9pOttyMcWkwq+HbE5uyuGD82LN7y2q+SNvi/6V5JEsOlD2R1A==",
    "package",
    r"pyodide(\.asm|-lock)?\.[a-z]+|python_stdlib\.zip",
)
