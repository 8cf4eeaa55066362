"""A headless Chromium for tests, driven over WebDriver's plain HTTP (https://www.w3.org/TR/webdriver2/)."""

import base64
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.needs import needs_setup
from tests.servers import ServerMissing, free_port
from tests.stack import http_client, wait_for

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class ElementGone(RuntimeError):
    """The element is not there, or not any more; nothing was done."""


class Browser:
    def __init__(self, http: httpx.Client, session: str) -> None:
        self._http = http
        self._base = f"/session/{session}"

    def open(self, url: str) -> None:
        self._do("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """The value that the script, a function's body, returns."""
        return self._do("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def click(self, css: str) -> None:
        """A real click in the middle of the element, once it is there; a page that follows changes may draw it anew."""
        wait_for(f"a click on {css}", lambda: self._is_clicked(css), every=0.05)

    def _is_clicked(self, css: str) -> bool:
        try:
            found = self._do("POST", "/element", {"using": "css selector", "value": css})
            self._do("POST", f"/element/{found[_ELEMENT]}/click", {})
        except ElementGone:
            return False
        return True

    @contextmanager
    def pressed(self, css: str) -> Iterator[None]:
        """The mouse's button is down on the middle of the element, and is released there."""
        box = self.run(
            "const box = document.querySelector(arguments[0]).getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]",
            css,
        )
        mouse = {"x": box[0], "y": box[1], "button": "left", "clickCount": 1}
        self._devtools("Input.dispatchMouseEvent", {"type": "mousePressed", **mouse})
        yield
        self._devtools("Input.dispatchMouseEvent", {"type": "mouseReleased", **mouse})

    def type(self, css: str, text: str) -> None:
        """Keys into the field, once it is there, as somebody presses them."""
        self.click(css)
        found = self._do("POST", "/element", {"using": "css selector", "value": css})
        self._do("POST", f"/element/{found[_ELEMENT]}/value", {"text": text})

    def text(self, css: str) -> str:
        """What a reader sees of the element: nothing where it is hidden, or not there."""
        found = "const found = document.querySelector(arguments[0])"
        return self.run(f"{found}; return found?.checkVisibility() ? found.innerText : ''", css)

    def wait_for_text(self, css: str, text: str) -> None:
        wait_for(f"{text!r} in {css}", lambda: text in self.text(css), every=0.05)

    @contextmanager
    def windows(self, number: int) -> Iterator[list[str]]:
        """So many more, all of which are visible; then the one that was there is used again."""
        first = self._do("GET", "/window")
        made = [self._do("POST", "/window/new", {"type": "window"})["handle"] for _ in range(number)]
        try:
            yield made
        finally:
            for each in made:
                self.to_window(each)
                self._do("DELETE", "/window")
            self.to_window(first)

    def to_window(self, handle: str) -> None:
        self._do("POST", "/window", {"handle": handle})

    def resize(self, width: int, height: int) -> None:
        self._do("POST", "/window/rect", {"width": width, "height": height})

    def emulate(self, width: int, scheme: str) -> None:
        """As wide as a screen of this width, which may be less than a window can have, in "light" or "dark"."""
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": True}
        self._devtools("Emulation.setDeviceMetricsOverride", metrics)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._devtools("Emulation.setEmulatedMedia", {"features": [feature]})

    def picture(self, file: Path) -> None:
        """The whole page, also what is below the window, as a PNG."""
        box = self.run("return [innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": box[0], "height": box[1], "scale": 1}
        shot = self._devtools("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(shot["data"]))

    def _devtools(self, command: str, parameters: dict[str, Any]) -> Any:
        return self._do("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def complaints(self) -> list[str]:
        """What the page's console says at level SEVERE, e.g. a breach of its content policy."""
        entries = self._do("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]

    def _do(self, method: str, path: str, body: Any = None) -> Any:
        answer = self._http.request(method, self._base + path, json=body)
        if answer.is_success:
            return answer.json()["value"]
        gone = ("no such element", "stale element reference", "element click intercepted", "element not interactable")
        kind = ElementGone if answer.json()["value"]["error"] in gone else RuntimeError
        raise kind(f"WebDriver {path}: {answer.text[:500]}")


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    needs_setup("a browser")
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    if driver is None or chromium is None:
        raise ServerMissing("no chromium or no chromedriver: run .ci/setup chromium as root")
    port = free_port()
    options = {
        "binary": chromium,
        "args": [
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
            f"--user-data-dir={folder / 'profile'}",
        ],
    }  # fmt: skip
    capabilities = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
    with (folder / "chromedriver.log").open("wb") as log:
        process = subprocess.Popen([driver, f"--port={port}"], stdout=log, stderr=log)
    try:
        with http_client(f"http://127.0.0.1:{port}") as http:
            wait_for("chromedriver", lambda: _is_ready(http), every=0.05)
            made = http.post("/session", json={"capabilities": {"alwaysMatch": capabilities}})
            if not made.is_success:
                raise ServerMissing(f"chromium does not start: {made.text[:500]}")
            session = made.json()["value"]["sessionId"]
            try:
                yield Browser(http, session)
            finally:
                http.delete(f"/session/{session}")
    finally:
        process.terminate()
        process.wait(300)


def _is_ready(http: httpx.Client) -> bool:
    try:
        return http.get("/status").is_success
    except httpx.TransportError:
        return False
