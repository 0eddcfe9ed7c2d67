"""Chromium without a window, driven over pipes by its own protocol, for tests of pages.

The protocol is JSON, one object after another with a zero byte behind each, over two inherited file
descriptors. See docs/adr/0026-reports.md for why there is no library in between.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

FLAGS = (
    "--headless",
    "--no-sandbox",  # tests run as root in containers; the pages are our own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--remote-debugging-pipe",
)

PATIENCE_S = 60.0


def find_browser() -> str | None:
    """The browser's program, if one is installed."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One browser process with one page.

    Attributes:
        problems: errors that the page threw or the console showed, and refused loads.
        requests: addresses of everything that was loaded.
    """

    def __init__(self, program: str) -> None:
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._folder = tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True)
        command_in, self._to = os.pipe()
        self._from, answer_out = os.pipe()
        # the browser reads descriptor 3 and writes descriptor 4
        script = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
        profile = f"--user-data-dir={self._folder.name}"
        self._process = subprocess.Popen(
            [
                "/bin/bash",
                "-c",
                script,
                "browser",
                str(command_in),
                str(answer_out),
                program,
                *FLAGS,
                profile,
            ],
            pass_fds=(command_in, answer_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(command_in)
        os.close(answer_out)
        self._buffer, self._number, self._session = b"", 0, None
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._send(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError, TimeoutError, EOFError):
            self._session = None
            self._send("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self._folder.cleanup()

    def open(self, path: Path) -> None:
        """Load a page and wait until its script has run."""
        self.problems.clear()
        self.requests.clear()
        self._send("Page.navigate", url=path.as_uri())
        self.wait_for("document.readyState === 'complete' && document.URL !== 'about:blank'")

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self._send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"]["exception"].get("description", answer))
        return answer["result"].get("value")

    def wait_for(self, script: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + PATIENCE_S
        while not self.evaluate(script):
            if time.monotonic() > end:
                raise TimeoutError(f"not true within {PATIENCE_S} s: {script}")
            time.sleep(0.02)

    def click(self, script: str) -> None:
        """Press the mouse in the middle of an element, wherever it is on the page."""
        self.press(*self.middle(script))

    def middle(self, script: str) -> tuple[float, float]:
        """Where the middle of an element is, once it is in view."""
        x, y = self.evaluate(
            f"(() => {{ const e = {script}; e.scrollIntoView({{block: 'center', behavior: 'instant'}});"
            " const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        return x, y

    def press(self, x: float, y: float, *, to_x: float | None = None) -> None:
        """Press the mouse at a place, and let it go there or at another ``x``."""
        end_x = x if to_x is None else to_x
        button = {"button": "left", "clickCount": 1}
        self._send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self._send("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, **button)
        if to_x is not None:
            self._send("Input.dispatchMouseEvent", type="mouseMoved", x=to_x, y=y, button="left", buttons=1)
        self._send("Input.dispatchMouseEvent", type="mouseReleased", x=end_x, y=y, **button)

    def type(self, text: str) -> None:
        """Type text into what has the focus."""
        self._send("Input.insertText", text=text)

    def key(self, key: str, code: int = 0, text: str = "") -> None:
        """Press one key, named as in the DOM."""
        details = {"key": key, "windowsVirtualKeyCode": code}
        self._send("Input.dispatchKeyEvent", type="keyDown", **details, **({"text": text} if text else {}))
        self._send("Input.dispatchKeyEvent", type="keyUp", **details)

    def prefer(self, scheme: str, media: str = "") -> None:
        """Say that the user prefers ``light`` or ``dark``; show the page as on a screen or as printed."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._send("Emulation.setEmulatedMedia", media=media, features=features)

    def resize(self, width: int, height: int) -> None:
        """Set the size of the window."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._send("Emulation.setDeviceMetricsOverride", **size)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Write the page as a PNG, the whole of it or what the window shows."""
        answer = self._send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def pdf(self) -> bytes:
        """The page as it prints."""
        return base64.b64decode(self._send("Page.printToPDF", printBackground=True)["data"])

    def _send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        return self._receive(lambda answer: answer.get("id") == self._number)

    def _receive(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE_S
        while True:
            while b"\0" in self._buffer:
                text, _, self._buffer = self._buffer.partition(b"\0")
                answer = json.loads(text)
                self._note(answer)
                if wanted(answer):
                    if "error" in answer:
                        raise AssertionError(answer["error"])
                    return answer["result"]
            ready, _, _ = select.select([self._from], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError(f"the browser has not answered within {PATIENCE_S} s")
            part = os.read(self._from, 2**20)
            if not part:
                raise EOFError("the browser has ended")
            self._buffer += part

    def _note(self, event: dict[str, Any]) -> None:
        details = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(json.dumps(details["exceptionDetails"]))
            case "Log.entryAdded":
                self.problems.append(details["entry"]["text"])
            case "Runtime.consoleAPICalled":
                self.problems.append(json.dumps(details["args"]))
            case "Network.requestWillBeSent":
                self.requests.append(details["request"]["url"])
