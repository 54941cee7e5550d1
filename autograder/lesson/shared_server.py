"""One process that has imported torch, for all notebooks that are run together.

Each notebook's kernel starts a process that imports torch and from which its ranks are forked. That takes two seconds
of a core, so notebooks that run together share the import: their servers are forked from one process.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from autograder.lesson import notebook


@contextlib.contextmanager
def share_server() -> Iterator[None]:
    """Kernels that are started in this block fork their ranks from servers that one process forks for them.

    They find that process by the environment variable RANKS_SERVER, the path of its socket. A kernel that cannot reach
    it starts a server of its own. A block inside another one uses the other's process.
    """
    if "RANKS_SERVER" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="ranks-server-") as folder:
        path = os.path.join(folder, "socket")
        with _listen(path) as process:
            os.environ["RANKS_SERVER"] = path
            try:
                yield
            finally:
                del os.environ["RANKS_SERVER"]
                process.kill()  # it may still be importing torch


def _listen(path: str) -> subprocess.Popen[bytes]:
    """Start the process, which ends with this one. `ranks` is not imported here, where it would start a server, too."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(128)
        start = "import sys; sys.path.insert(0, sys.argv[2]); from ranks import server; server.listen(int(sys.argv[1]))"
        return subprocess.Popen(
            [sys.executable, "-P", "-c", start, str(listening.fileno()), str(notebook.ROOT)],
            pass_fds=[listening.fileno()],
            start_new_session=True,
            stdin=subprocess.PIPE,  # its end tells the process that this one has ended
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "RANKS_INSIDE": "server", "OMP_NUM_THREADS": "1"},
        )
