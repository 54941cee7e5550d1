"""A Jupyter server with nbgrader's formgrader on a course, for tests and for the pictures in the book."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any


def environment(root: Path) -> dict[str, str]:
    """Variables that keep Jupyter's own files in the course's folder."""
    runtime = root / "runtime"
    return {**os.environ, "JUPYTER_RUNTIME_DIR": str(runtime), "JUPYTER_CONFIG_DIR": str(runtime), "HOME": str(root)}


class Server:
    """A Jupyter server on the course in `root`, on a free port of the loopback."""

    def __init__(self, root: Path):
        self.token = secrets.token_hex(8)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        options = {
            "ip": "127.0.0.1",
            "port": self.url.rsplit(":", 1)[1],
            "port_retries": "0",
            "root_dir": str(root),
            "open_browser": "False",
            "disable_check_xsrf": "True",
            "allow_root": "True",
        }
        self.log = open(root / "server.log", "w")  # noqa: SIM115 (closed in stop)
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "jupyter_server", f"--IdentityProvider.token={self.token}"),
                *(f"--ServerApp.{key}={value}" for key, value in options.items()),
            ],
            cwd=root,
            env=environment(root),
            stdout=self.log,
            stderr=self.log,
        )
        for _ in range(450):  # a busy machine takes its time
            try:
                self.get("/api/status")
                return
            except OSError:
                assert self.process.poll() is None, (root / "server.log").read_text()
                time.sleep(0.2)
        raise AssertionError("the server does not answer")

    def get(self, path: str, method: str = "GET", body: Any = None) -> str:
        """What the server answers. body: sent as JSON."""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=json.dumps(body or {}).encode() if method in ("POST", "PUT") else None,
            headers={"Authorization": f"token {self.token}"},
        )
        with urllib.request.urlopen(request, timeout=900) as answer:
            return answer.read().decode()

    def json(self, path: str, method: str = "GET") -> Any:
        """What it answers, read as JSON."""
        return json.loads(self.get(path, method))

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(timeout=300)
        self.log.close()
