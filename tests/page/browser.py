"""A headless Chromium, spoken to over its own protocol through two pipes: no driver, no library.

::

    test ──{"id": 1, "method": …}\\0──► fd 3 │ chromium │ fd 4 ──{"id": 1, "result": …}\\0──► reader thread
                                                              └─{"method": "Log.entryAdded", …}──► events
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ANSWER_S = 30.0
LAUNCH = """
import fcntl, os, sys
high = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for end, wanted in zip(high, (3, 4)):
    os.dup2(end, wanted)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Puts the pipes where the browser wants them, and becomes the browser."""
COMPLAINTS = {"Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"}


def found() -> str | None:
    """The browser on this machine: `HISPARSE_CHROMIUM`, or the first that is installed."""
    return os.environ.get("HISPARSE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@dataclass
class Browser:
    """One browser with one page in it."""

    program: str
    home: Path
    complaints: list[str] = field(default_factory=list)
    """Errors and warnings of the page's console."""

    def __enter__(self) -> Self:
        ours_out, theirs_in = self._pipe()
        theirs_out, ours_in = self._pipe()
        # As root it runs without a sandbox of its own.
        flags = ["--headless=new", "--remote-debugging-pipe", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
        flags += ["--no-sandbox"] if os.geteuid() == 0 else []
        words = [self.program, *flags, f"--user-data-dir={self.home}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(theirs_in), str(theirs_out), *words],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._out, self._in = os.fdopen(ours_out, "wb", buffering=0), os.fdopen(ours_in, "rb")
        self._numbers, self._answers = itertools.count(1), dict[int, queue.Queue[dict[str, Any]]]()
        self._session = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        return self

    @staticmethod
    def _pipe() -> tuple[int, int]:
        """A pipe, as (end to write to, end to read from)."""
        to_read, to_write = os.pipe()
        return to_write, to_read

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(timeout=20)
        self._reader.join(timeout=20)
        self._out.close()
        self._in.close()

    def _read(self) -> None:
        kept = b""
        while chunk := self._in.read1():  # type: ignore[attr-defined]
            *whole, kept = (kept + chunk).split(b"\0")
            for message in map(json.loads, whole):
                if "id" in message:
                    self._answers[message["id"]].put(message)
                elif message["method"] in COMPLAINTS:
                    self._complain(message["method"], message["params"])

    def _complain(self, method: str, told: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(told["exceptionDetails"])[:600])
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(told["args"])[:600])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Make one call of the protocol and give its result."""
        number = next(self._numbers)
        self._answers[number] = queue.Queue()
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        told = self._answers[number].get(timeout=ANSWER_S)
        del self._answers[number]
        assert "error" not in told, f"{method}: {told}"
        result: dict[str, Any] = told["result"]
        return result

    def look(self, width: int, height: int, *, dark: bool = False) -> None:
        """Give the window a size and a theme."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        """Go to a page and wait until it shows the node."""
        self.call("Page.navigate", url=url)
        self.until("document.documentElement?.dataset.sequence !== undefined")
        self.until("document.getElementById('map')?.getAttribute('aria-label') !== 'no map yet'")

    def js(self, expression: str) -> Any:
        """What an expression comes to, promises awaited."""
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def until(self, condition: str, seconds: float = 15.0) -> None:
        """Wait until a condition holds on the page."""
        wait = (
            f"new Promise((done) => {{ const end = performance.now() + {seconds * 1000}; const look = () => {{"
            f" if ({condition}) done(true); else if (performance.now() > end) done(false);"
            " else setTimeout(look, 30); }; look(); })"
        )
        assert self.js(wait), f"not within {seconds} s: {condition}"

    def key(self, name: str, code: int, text: str = "") -> None:
        """Press a key."""
        more = {"text": text} if text else {}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=name,
                code=name,
                windowsVirtualKeyCode=code,
                **(more if kind == "keyDown" else {}),
            )

    def picture(self, path: Path) -> None:
        """Keep a picture of the whole page."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        taken = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(taken["data"]))
