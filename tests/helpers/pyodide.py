"""Python for browsers, from npm and from a server of this machine, in place of the public one that the book names.

FULL is old, but holds numpy. CURRENT is the one that `_config.yml` names, without any packages: npm has no more of it.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

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


class _Handler(http.server.SimpleHTTPRequestHandler):
    extensions_map = {  # noqa: RUF012 (the base class has it so)
        **http.server.SimpleHTTPRequestHandler.extensions_map,
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def end_headers(self) -> None:
        self.send_header("Access-Control-Allow-Origin", "*")  # a page opened from disk is of no origin
        super().end_headers()

    def log_message(self, *_arguments: object) -> None:
        pass


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """A folder on a server that pages of any origin may ask; its URL."""
    handler = functools.partial(_Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
