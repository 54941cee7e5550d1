"""Headless Chromium through its own debugging protocol: enough to open a page, watch it and ask it things.

`python -m tests.helpers.browser --find` prints the browser's path; it exits 1 and says so when there is none.
`python -m tests.helpers.browser PAGE[#PLACE] PNG [WIDTH HEIGHT] [--dark]` takes a picture of a page of the book.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PLACES = ("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",)
INSTALL = "install Chromium (Debian: apt-get install chromium), or name one in the variable CHROMIUM"

FLAGS = [
    "--headless=new",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    # The network is off: no name resolves, and nothing listens at the proxy. This machine's own servers can be reached.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--proxy-server=http://127.0.0.1:9",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
]


def find() -> str | None:
    """The browser to use, or None."""
    named = os.environ.get("CHROMIUM")
    candidates = [named] if named else [*NAMES, *PLACES]
    return next((path for name in candidates if (path := shutil.which(name))), None)


class BrowserError(RuntimeError):
    """The browser did not start, or an expression raised in the page."""


class Browser:
    """One browser with one tab. Use as a context manager; `open` a page, then `evaluate` in it.

    requests: URLs that the page asked for since it was opened. errors: script errors and console errors.
    """

    def __init__(self, width: int = 1280, height: int = 900):
        path = find()
        if path is None:
            raise BrowserError(f"no browser: {INSTALL}")
        self.profile = tempfile.mkdtemp(prefix="browser-")
        sandbox = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        self.process = subprocess.Popen(
            [path, *FLAGS, *sandbox, f"--user-data-dir={self.profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._number = 0
        self._loaded = False
        try:
            self._connect()
            for domain in ("Page", "Runtime", "Network", "Log"):
                self.call(f"{domain}.enable")
            self.resize(width, height)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the browser and remove its profile."""
        if getattr(self, "socket", None):
            self.socket.close()
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)

    def _connect(self) -> None:
        import websocket

        port_file = Path(self.profile, "DevToolsActivePort")
        until = time.monotonic() + 60
        while not (port_file.is_file() and len(port_file.read_text().splitlines()) == 2):
            if self.process.poll() is not None or time.monotonic() > until:
                raise BrowserError("Chromium did not start")
            time.sleep(0.05)
        port, path = port_file.read_text().splitlines()
        self.socket = websocket.create_connection(f"ws://127.0.0.1:{port}{path}", timeout=60, http_no_proxy=["*"])
        self.session = None
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]

    def call(self, method: str, **params: Any) -> dict:
        """Send one command and wait for its answer; events on the way are noted."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.socket.send(json.dumps(message))
        while True:
            answer = json.loads(self.socket.recv())
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error'].get('message')}")
                return answer["result"]
            self._note(answer)

    def _note(self, event: dict) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.errors.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}".strip())

    def resize(self, width: int, height: int) -> None:
        """The size of the window in CSS pixels; below 500 wide it counts as a phone."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )

    def open(self, url: str) -> None:
        """Load a page and wait until its scripts and formulas are done."""
        self.requests.clear()
        self.errors.clear()
        self._loaded = False
        answer = self.call("Page.navigate", url=url)
        if answer.get("errorText"):
            raise BrowserError(f"{url}: {answer['errorText']}")
        until = time.monotonic() + 60
        while not self._loaded:
            if time.monotonic() > until:
                raise BrowserError(f"{url} did not load within a minute")
            with contextlib.suppress(BrowserError):  # the page that was asked may be on its way out
                self.evaluate("0")  # events come with the answer
            time.sleep(0.02)
        self.wait("document.fonts.status === 'loaded'")
        self.wait(TYPESET)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page, as plain data; promises are awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise BrowserError(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    def wait(self, expression: str, seconds: float = 30) -> None:
        """Wait until an expression is true."""
        until = time.monotonic() + seconds
        while not self.evaluate(expression):
            if time.monotonic() > until:
                raise BrowserError(f"never came true: {expression}")
            time.sleep(0.05)

    def screenshot(self, path: Path, whole: bool = False) -> None:
        """Write a PNG of the window, or of the whole page."""
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        Path(path).write_bytes(base64.b64decode(picture["data"]))


#: Has MathJax, where there is one, drawn every formula? Asked again and again: a page may send us on to another.
TYPESET = """(() => {
  const promise = window.MathJax && MathJax.startup && MathJax.startup.promise;
  if (!promise) return !document.querySelector('script[src*="mathjax"]');
  promise.then(() => { window.typeset_is_done = true; });
  return window.typeset_is_done === true;
})()"""


def main(arguments: list[str]) -> int:
    if arguments == ["--find"]:
        print(find() or f"no browser: {INSTALL}")
        return 0 if find() else 1
    dark = "--dark" in arguments
    page, png, *size = [argument for argument in arguments if argument != "--dark"]
    with Browser(*(int(number) for number in size)) as browser:
        file, _, place = page.partition("#")
        browser.open(Path(file).resolve().as_uri() + ("#" + place if place else ""))
        if dark:
            browser.evaluate("document.documentElement.dataset.theme = 'dark'")
        time.sleep(0.5)  # what fades or scrolls has arrived
        browser.screenshot(Path(png))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
