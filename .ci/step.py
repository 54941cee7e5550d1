"""Run one long command of the Makefile: show its progress in one line, write its log to a file, explain a failure.

    python3 .ci/step.py "installing" _build/pip.log -- COMMAND ...

Uses the standard library only, because it also runs before anything is installed.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

#: The builder of the book prints percentages in two passes; each pass → its part of the whole, in percent.
PASSES = {"reading sources": (0, 70), "writing output": (70, 100)}
COLOR = re.compile(r"\x1b\[[0-9;]*m")
TROUBLE = re.compile(r"\b(WARNING|ERROR|CRITICAL)\b|^[\w.]*(Error|Exception)\b|^E: ")
HARMLESS = re.compile(r"IPKernelApp|pip's dependency resolver|root user action", re.IGNORECASE)
NO_NETWORK = re.compile(
    r"NewConnectionError|Temporary failure (in name resolution|resolving)|Network is unreachable"
    r"|Failed to establish a new connection|Could not resolve|ConnectTimeout|ReadTimeout|ProxyError|NameResolutionError"
)


def main() -> int:
    label, log, command = sys.argv[1], Path(sys.argv[2]), sys.argv[4:]
    log.parent.mkdir(parents=True, exist_ok=True)
    line = Line(label)
    try:
        with log.open("w") as file:
            status = follow(command, file, line)
    except FileNotFoundError:
        line.end("failed")
        print(f"make: {command[0]} is not installed", file=sys.stderr)
        return 1
    line.end("done" if status == 0 else "failed")
    if status:
        explain(label, log)
    return status


def follow(command, file, line):
    """Run the command and show its progress; its exit status."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    try:
        for text in process.stdout:
            text = COLOR.sub("", text)
            file.write(text)
            file.flush()
            line.show(text.strip())
        return process.wait()
    except KeyboardInterrupt:
        process.terminate()
        line.end("stopped")
        raise SystemExit(130) from None


class Line:
    """One line on the terminal that is overwritten; in a log file, one line at the start and one at the end."""

    def __init__(self, label):
        self.label, self.start, self.percent, self.shown = label, time.monotonic(), None, 0.0
        self.moves = sys.stderr.isatty()
        if not self.moves:
            print(f"{label} …", file=sys.stderr, flush=True)

    def show(self, text):
        for name, (low, high) in PASSES.items():
            found = re.search(rf"{name}.*\[ *(\d+)%\]", text)
            if found:
                self.percent = low + (high - low) * int(found.group(1)) // 100
        now = time.monotonic()
        if not self.moves or not text or now - self.shown < 0.1:
            return
        self.shown = now
        done = "" if self.percent is None else f"{self.percent:3d}% |{'█' * (self.percent // 5):<20}| "
        self.write(f"{self.label}: {done}{now - self.start:.0f} s  {text}"[:118])

    def end(self, word):
        self.write(f"{self.label}: {word} in {time.monotonic() - self.start:.0f} s")
        print(file=sys.stderr)

    def write(self, text):
        print(f"\r\x1b[K{text}" if self.moves else text, end="", file=sys.stderr, flush=True)


def explain(label, log):
    """Print what went wrong, in a few lines."""
    lines = [line.rstrip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    if any(NO_NETWORK.search(line) for line in lines):
        print(f"make: {label}: no network, or the package server does not answer (log: {log})", file=sys.stderr)
        return
    telling = [line for line in lines if TROUBLE.search(line) and not HARMLESS.search(line)]
    for line in (telling or lines)[-15:]:
        print(f"  {line}", file=sys.stderr)
    print(f"make: {label} failed; the whole log is in {log}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
