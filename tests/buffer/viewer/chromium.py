"""A real headless Chromium, driven over its DevTools protocol."""

import base64
import json
import shutil
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import pytest


def needed() -> str:
    """The browser's path; skips the test without it or without a library for its protocol."""
    pytest.importorskip("websockets.sync.client", reason="websockets is not installed")
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no Chromium here (Debian: apt-get install chromium)")
    return found


SHOWN = """
JSON.stringify([location.href, document.visibilityState, document.body.innerText.slice(0, 2000)])
"""


class Browser:
    """One page. `said`: what its console said, errors too."""

    def __init__(self, size=(1440, 900)):
        from websockets.sync.client import connect

        self.folder = tempfile.mkdtemp(prefix="r3l-chromium-")
        self.process = subprocess.Popen(
            [
                needed(), "--headless=new", "--no-sandbox", "--disable-gpu",
                "--disable-dev-shm-usage", "--disable-background-networking", "--no-first-run",
                f"--window-size={size[0]},{size[1]}", f"--user-data-dir={self.folder}",
                "--remote-debugging-port=0", "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        port = Path(self.folder, "DevToolsActivePort")
        until(lambda: port.exists() and len(port.read_text().splitlines()) == 2)
        number, path = port.read_text().splitlines()
        self.stack = ExitStack()
        self.socket = self.stack.enter_context(
            connect(
                f"ws://127.0.0.1:{number}{path}", max_size=None, open_timeout=60, ping_interval=None
            )
        )
        self.sent, self.said, self.session = 0, [], None
        targets = self.ask("Target.getTargets")["targetInfos"]
        target = next(one["targetId"] for one in targets if one["type"] == "page")
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method, **params):
        """The reply to one command."""
        self.sent += 1
        message = {"id": self.sent, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.socket.send(json.dumps(message))
        while True:
            reply = json.loads(self.socket.recv(timeout=120))
            if reply.get("id") == self.sent:
                assert "error" not in reply, reply["error"]
                return reply["result"]
            self._note(reply)

    def _note(self, event):
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.said.append(params["exceptionDetails"]["exception"].get("description", "?"))
        elif event.get("method") == "Log.entryAdded":
            self.said.append(params["entry"]["text"])
        elif event.get("method") == "Page.javascriptDialogOpening":
            self.said.append(f"dialog: {params['message']}")
            raise AssertionError(f"the page opened a dialog: {params['message']}")

    def open(self, url):
        """Go to a page and wait until its script is ready."""
        self.ask("Page.navigate", url=url)
        self.wait("document.body && document.body.dataset.ready === 'yes'")

    def value(self, expression):
        """The value of a JavaScript expression in the page."""
        found = self.ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition, seconds=60):
        """Wait until a JavaScript expression is true."""
        try:
            until(lambda: self.value(condition), seconds)
        except AssertionError:
            shown = self.value(SHOWN)
            raise AssertionError(f"{condition} did not happen: {self.said}, {shown}") from None

    def picture(self, path, dark=False):
        """Write a PNG of the window."""
        scheme = "dark" if dark else "light"
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.ask("Emulation.setEmulatedMedia", features=[feature])
        png = self.ask("Page.captureScreenshot", format="png")["data"]
        Path(path).write_bytes(base64.b64decode(png))

    def close(self):
        self.stack.close()
        self.process.terminate()
        self.process.wait(60)
        shutil.rmtree(self.folder, ignore_errors=True)


def until(happened, seconds=60):
    """Wait until something has happened."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)
