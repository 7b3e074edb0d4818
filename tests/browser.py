"""A headless Chromium, driven over its own pipe: no driver, no port, no network."""

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SWITCHES = (
    "--headless=new",
    "--no-sandbox",  # containers often run as root, where Chromium refuses its sandbox; the pages are our own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--remote-debugging-pipe",
)


def found() -> str | None:
    """The path of a Chromium on this machine; $CHROMIUM names one."""
    return os.environ.get("CHROMIUM") or next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of one Chromium. messages: what the console, the page's errors and its requests said."""

    def __init__(self, program: str) -> None:
        self.folder = tempfile.mkdtemp(prefix="chromium-")
        to_them, self._write = os.pipe()
        self._read, from_them = os.pipe()
        wanted = f"exec 3<&{to_them} 4>&{from_them}; exec \"$0\" \"$@\""
        command = ["bash", "-c", wanted, program, *SWITCHES, f"--user-data-dir={self.folder}", "about:blank"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, pass_fds=(to_them, from_them), **quiet)
        os.close(to_them)
        os.close(from_them)
        self._buffer, self._number, self.messages = b"", 0, []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = None
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict:
        """Ask for something -> the answer. Events that come first are kept in `messages`."""
        self._number += 1
        asked = {"id": self._number, "method": method, "params": params}
        if getattr(self, "_session", None):
            asked["sessionId"] = self._session
        os.write(self._write, json.dumps(asked).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.messages.append(answer)

    def _next(self) -> dict:
        while b"\0" not in self._buffer:
            more = os.read(self._read, 1 << 20)
            if not more:
                raise RuntimeError("Chromium has ended.")
            self._buffer += more
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def open(self, file: Path, width: int, height: int = 900) -> None:
        """Show a file in a window of this width in CSS pixels, and wait until all of it is there."""
        self.messages.clear()
        mobile = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile
        )
        self.call("Page.navigate", url=file.resolve().as_uri())
        for _ in range(300):
            if self.ask("document.readyState === 'complete' && [...document.images].every(i => i.complete)"):
                return
            time.sleep(0.1)
        raise RuntimeError(f"{file} was not loaded after 30 s.")

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression on the page."""
        given = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in given:
            raise RuntimeError(given["exceptionDetails"]["text"])
        return given["result"].get("value")

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, exceptions, and requests that left the file."""
        found = []
        for message in self.messages:
            method, params = message.get("method"), message.get("params", {})
            if method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"])
            if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
                found.append(str(params["args"]))
            if method == "Runtime.exceptionThrown":
                found.append(params["exceptionDetails"]["text"])
            if method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(("file:", "data:")):
                found.append(f"asked the network for {params['request']['url']}")
        return found

    def screenshot(self, to: Path, *, whole: bool = True) -> None:
        import base64

        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        to.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        try:
            self._session = None
            self.call("Browser.close")
        except (RuntimeError, OSError):  # it may be gone before it has answered
            pass
        self._process.wait(20)
        os.close(self._write)
        os.close(self._read)
        shutil.rmtree(self.folder, ignore_errors=True)
