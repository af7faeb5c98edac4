"""A real Chromium, if this machine has one, driven over its DevTools protocol."""

from __future__ import annotations

import base64
import contextlib
import functools
import http.server
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: Names of its command, the first choice first. `VITCG_BROWSER` names another one.
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str | None:
    """The command of a Chromium; None where there is none."""
    named = os.environ.get("VITCG_BROWSER")
    return named or next((found for name in NAMES if (found := shutil.which(name))), None)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder of files, on this machine only."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()


class Browser:
    """One page of a headless Chromium."""

    def __init__(self, socket: Any) -> None:
        self._socket, self._number = socket, 0

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """What a command of the protocol answers."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv(timeout=120))
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def run(self, script: str) -> Any:
        """The value of an expression in the page; of a promise, what it brings."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, script: str) -> None:
        """Wait until an expression holds."""
        end = time.monotonic() + 60
        while not self.run(script):
            assert time.monotonic() < end, f"still not: {script}"
            time.sleep(0.05)

    def size(self, width: int, height: int = 900) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def scheme(self, name: str) -> None:
        """`light` or `dark`, as the system would say."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def open(self, address: str) -> None:
        """Open a page as somebody would who was never there: a choice of a theme outlives the page that kept it."""
        self.call("Page.navigate", url="about:blank")
        self.wait("location.href === 'about:blank' && document.readyState === 'complete'")
        self.call("Storage.clearDataForOrigin", origin=address, storageTypes="all")
        self.call("Page.navigate", url=address)
        self.wait("location.href !== 'about:blank' && document.readyState === 'complete'")
        # No colour or place on its way to another one.
        self.run("document.head.insertAdjacentHTML('beforeend', '<style>* { transition: none !important }</style>')")

    def picture(self, file: Path) -> None:
        """The visible part as a PNG."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextlib.contextmanager
def browser(command: str) -> Iterator[Browser]:
    """A browser with a profile of its own. It knows no address but this machine's."""
    from websockets.sync.client import connect

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ["--headless=new", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-port=0",
                   "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
                   f"--user-data-dir={profile}"]  # fmt: skip
        options += ["--no-sandbox"] if os.geteuid() == 0 else []  # it refuses one as root
        process = subprocess.Popen(
            [command, *options, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            said = Path(profile, "DevToolsActivePort")
            end = time.monotonic() + 60
            while not (said.exists() and said.read_text().count("\n")):
                assert process.poll() is None, f"{command} ended with {process.returncode}"
                assert time.monotonic() < end, f"{command} does not start"
                time.sleep(0.05)
            port = said.read_text().splitlines()[0]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
                (page, *_) = [one for one in json.load(answer) if one["type"] == "page"]
            with connect(page["webSocketDebuggerUrl"], max_size=None, open_timeout=60) as socket:
                found = Browser(socket)
                found.call("Page.enable")
                yield found
        finally:
            process.terminate()
            process.wait(60)
