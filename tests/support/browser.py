"""A real headless Chromium, driven over its debugging pipe: no package is needed beside the browser
itself.

Where none is installed, `npm pack @sparticuz/chromium` holds one; a script named chromium on PATH
that starts it will do."""

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--remote-debugging-pipe",
    "--disable-background-networking",
)

PROBLEMS = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")


class Browser:
    """One page of a browser. `requests` and `problems` hold every address asked for, and every
    error and blocked script.
    """

    def __init__(self, folder: Path, width: int = 1200, dark: bool = False):
        (ours, theirs), (reads, writes) = os.pipe(), os.pipe()  # we read `ours`, and write `writes`
        self.ours, self.writes, self.buffer, self.number, self.events = ours, writes, b"", 0, []
        self.downloads = folder / "downloads"
        launch = f'exec "$0" "$@" 3<&{reads} 4>&{theirs}'
        command = ["bash", "-c", launch, CHROMIUM, *FLAGS, f"--user-data-dir={folder}/profile"]
        self.process = subprocess.Popen(
            command, pass_fds=(reads, theirs), stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
        )
        os.close(theirs)
        os.close(reads)
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for part in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{part}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        self.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(self.downloads))

    def call(self, method: str, **parameters: object) -> dict:
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        session = (
            {"sessionId": self.session}
            if self.session and not method.startswith("Browser.")
            else {}
        )
        os.write(self.writes, json.dumps(message | session).encode() + b"\0")
        while (answer := self._read()).get("id") != self.number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _read(self) -> dict:
        while b"\0" not in self.buffer:
            assert select.select([self.ours], [], [], 60)[0], "the browser does not answer"
            self.buffer += os.read(self.ours, 1 << 20)
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def open(self, address: str) -> None:
        self.events.clear()
        self.call("Page.navigate", url=address)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def run(self, script: str) -> object:
        """Value of an expression in the page, awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def choose(self, name: str, value: str) -> None:
        """Choose an option as a user's change of a select or an input does."""
        kind = "input" if name == "filter" else "change"
        at = f"document.getElementById({json.dumps(name)})"
        self.run(
            f"{at}.value = {json.dumps(value)}; {at}.dispatchEvent(new Event({json.dumps(kind)},"
            " {bubbles: true}))"
        )

    def click(self, selector: str) -> None:
        """A mouse click on the middle of an element."""
        element = f"document.querySelector({json.dumps(selector)})"
        middle = "(box => [box.x + box.width / 2, box.y + box.height / 2])"
        x, y = self.run(
            f"{element}.scrollIntoView({{block: 'center'}}),"
            f" {middle}({element}.getBoundingClientRect())"
        )
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def downloaded(self, name: str) -> bytes:
        """Content of a file that the page gave, once it is there."""
        for _ in range(200):
            files = [path for path in self.downloads.glob(name) if path.stat().st_size]
            if files:
                return files[0].read_bytes()
            self.run("new Promise(done => setTimeout(done, 50))")
            time.sleep(0.01)
        raise AssertionError(f"{name} did not come")

    @property
    def requests(self) -> list[str]:
        addresses = [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]
        return [address for address in addresses if not address.startswith("blob:")]

    @property
    def problems(self) -> list[dict]:
        return [event for event in self.events if event.get("method") in PROBLEMS]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self.writes)
