"""A real Chromium without a window, spoken to over two pipes; no library and no port."""

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.need import PATIENT_S, require

#: Longest wait for an answer, or for something to be true of a page, seconds.
LIMIT_S = 20.0


def chromium() -> str | None:
    """Path of the browser, if the machine has one."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page of one browser."""

    def __init__(self, folder: Path) -> None:
        path = chromium()
        require("Chromium", path)
        assert path is not None
        to_browser, self._to = os.pipe()
        self._from, from_browser = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
        # The browser reads from file 3 and writes to file 4.
        shell = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                ["/bin/bash", "-c", shell, path, *flags, f"--user-data-dir={folder}", "about:blank"],
                pass_fds=(to_browser, from_browser),
                stdout=log,
                stderr=log,
            )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []
        self._session: str | None = None
        pages = [each for each in self._ask("Target.getTargets")["targetInfos"] if each["type"] == "page"]
        attached = self._ask("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for part in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{part}.enable")

    def close(self) -> None:
        self._process.kill()
        self._process.wait(PATIENT_S)
        os.close(self._to)
        os.close(self._from)

    def open(self, url: str, *, width: int = 1400, height: int = 1300, dark: bool = False, first: str = "") -> None:
        """Load a page anew, as a reader who prefers light or dark colours; `first` is run before its own scripts."""
        self.events.clear()
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._ask("Emulation.setEmulatedMedia", features=scheme)
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._ask("Page.navigate", url="about:blank")
        added = self._ask("Page.addScriptToEvaluateOnNewDocument", source=first)["identifier"]
        self._ask("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")
        self._ask("Page.removeScriptToEvaluateOnNewDocument", identifier=added)

    def run(self, script: str) -> Any:
        """Evaluate an expression of JavaScript."""
        answer = self._ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, script: str) -> None:
        """Wait until an expression is true; fails by its text when that does not come."""
        end = time.monotonic() + LIMIT_S
        # Until the page is there, whatever is asked for may be missing.
        script_or_false = f"(() => {{ try {{ return Boolean({script}) }} catch {{ return false }} }})()"
        while not self.run(script_or_false):
            assert time.monotonic() < end, f"not within {LIMIT_S} s: {script}\n{self.run('document.body.innerText')}"
            time.sleep(0.05)

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            self._ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, text=text)

    def enter(self) -> None:
        self.press("Enter", 13, "\r")

    def tab(self) -> None:
        self.press("Tab", 9)

    def write(self, text: str) -> None:
        self._ask("Input.insertText", text=text)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot")["data"]))

    def complaints(self) -> list[str]:
        """What went wrong on the page: exceptions, refused resources, errors of the console."""
        self.run("1")  # whatever happened has been told by now
        return [
            json.dumps(each["params"])
            for each in self.events
            if each["method"] == "Runtime.exceptionThrown"
            or (each["method"] == "Log.entryAdded" and each["params"]["entry"]["level"] == "error")
        ]

    def requested(self) -> set[str]:
        """URLs that the page asked for."""
        asked = [each for each in self.events if each["method"] == "Network.requestWillBeSent"]
        return {each["params"]["request"]["url"] for each in asked}

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                found: dict[str, Any] = answer["result"]
                return found
            if "method" in answer:
                self.events.append(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._from, 1 << 16)
            assert chunk, "the browser ended"
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found
