"""A real browser for tests: headless Chromium, told what to do over two pipes by its DevTools protocol."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 120.0  # seconds that an answer, or a condition on the page, may take
# Chromium reads commands from file 3 and writes answers to file 4.
LAUNCH = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
# Keys by name: their numbers, and what they write.
KEYS = {
    "Tab": (9, ""), "Enter": (13, "\r"), "Escape": (27, ""), "Space": (32, " "),
    "ArrowLeft": (37, ""), "ArrowUp": (38, ""), "ArrowRight": (39, ""), "ArrowDown": (40, ""),
}  # fmt: skip


def find_browser() -> str:
    """Where Chromium is. A test without one is skipped."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    pytest.skip("needs Chromium: apt-get install chromium")


class Browser:
    """One tab. `with Browser(folder) as tab:` ends it at the end."""

    def __init__(self, profile: Path, width: int = 1200, height: int = 900) -> None:
        read_there, self._write = os.pipe()
        self._read, write_there = os.pipe()
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (read_there, write_there)]  # out of the way of 3 and 4
        flags = [
            "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync", "--hide-scrollbars", f"--user-data-dir={profile}",
            f"--window-size={width},{height}", "--remote-debugging-pipe", "about:blank",
        ]  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, *map(str, high), find_browser(), *flags],
            pass_fds=high, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for fd in (read_there, write_there, *high):
            os.close(fd)
        self._rest, self._number, self._session = b"", 0, ""
        self.said: list[dict[str, Any]] = []  # what the page logged, and its errors
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._read)
        os.close(self._write)

    def call(self, method: str, **params: object) -> dict[str, Any]:
        """Give a command of the protocol, and return its result."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": params}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._write, json.dumps(command).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.said.append(message["params"])

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            piece = os.read(self._read, 1 << 16)
            assert piece, "the browser has ended"
            self._rest += piece
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)

    def open(self, url: str) -> None:
        """Go to a page, and wait until it is there."""
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def ask(self, expression: str) -> Any:
        """The value of an expression on the page; a promise is waited for."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, expression: str) -> None:
        """Wait until an expression is true, also while the page is loaded again."""
        end = time.monotonic() + PATIENCE
        while True:
            found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
            if found["result"].get("value") is True:
                return
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.1)

    def resize(self, width: int = 1200, *, dark: bool = False, paper: bool = False) -> None:
        """The screen: so many pixels wide (a window would have 500 at least), light or dark; or a printer's paper."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media="print" if paper else "", features=scheme)
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )

    def press(self, key: str) -> None:
        """Press a key and let it go, as a reader does: Tab, Enter, Space, Escape or an arrow key."""
        code, text = KEYS[key]
        facts = {"key": text if key == "Space" else key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", **facts, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **facts)

    def walk_to(self, expression: str) -> None:
        """Press Tab until an expression about the page is true."""
        for _ in range(200):
            if self.ask(expression) is True:
                return
            self.press("Tab")
        raise AssertionError(f"not reached by Tab: {expression}")
