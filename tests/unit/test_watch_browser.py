"""The page of a job in a browser, which draws it from what it is told: in headless Chromium, where there is one."""

import base64
import json
import os
import select
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.refusals import absent
from tests.unit.test_watch import JOB, ended, job, page  # noqa: F401 - fixtures
from tfdist.monitor.watch.event_log import Past
from tfdist.monitor.watch.server import Page

DEADLINE_SECONDS = 120
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium or google-chrome on PATH")


class Browser:
    """Chromium without a window, by its own protocol over two pipes: messages of JSON that end with a zero."""

    def __init__(self, profile: Path) -> None:
        commands, self._send = os.pipe()
        self._receive, answers = os.pipe()
        high = [os.dup(one) for one in (commands, answers)]  # not below 5, whatever is open

        def places() -> None:
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        self._process = subprocess.Popen(
            [str(CHROMIUM), *arguments, "--window-size=1200,900", f"--user-data-dir={profile}",
             "--remote-debugging-pipe", "about:blank"],
            preexec_fn=places, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for one in (commands, answers, *high):
            os.close(one)
        self._buffer, self._number, self._session = b"", 0, {}
        self.told: list[dict[str, Any]] = []

    def open(self, address: str) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": found["sessionId"]}
        for domain in ("Runtime", "Log", "Network", "Page"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=address)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol; events that come meanwhile are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters, **self._session}
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.told.append(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert select.select([self._receive], [], [], DEADLINE_SECONDS)[0], "the browser does not answer"
            piece = os.read(self._receive, 1 << 20)
            assert piece, "the browser has ended"
            self._buffer += piece
        text, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(text)
        return answer

    def value(self, expression: str) -> Any:
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def wait_for(self, expression: str) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not self.value(expression):
            assert time.monotonic() < deadline, f"{expression}; the page is {self.value('document.body.innerText')}"
            time.sleep(0.05)

    def events(self, method: str) -> list[dict[str, Any]]:
        return [one["params"] for one in self.told if one.get("method") == method]

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._send)
        os.close(self._receive)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    found = Browser(tmp_path / "profile")
    yield found
    found.close()


def test_the_page_draws_what_it_is_told_until_the_job_ends(browser: Browser, page: Page, job: Path) -> None:  # noqa: F811
    address = f"http://127.0.0.1:{page.port}/"
    browser.open(address)
    browser.wait_for("document.querySelectorAll('#workers tr').length === 2")
    text = browser.value("document.body.innerText")
    assert not absent(text, JOB, "one slow worker", "backward pass", "worker 1 failed", "alert")
    widths = "[...document.querySelectorAll('#workers tr')].map(row => row.querySelector('.bar').innerText.length)"
    assert browser.value(widths) == [0, 0], "bars are drawn, not written"
    backward = browser.value(
        "[...document.querySelectorAll('#workers i')].filter(i => i.title.startsWith('backward'))"
        ".map(i => i.getBoundingClientRect().width)"
    )
    assert backward[1] > 1.5 * backward[0] > 0
    assert browser.value("document.querySelectorAll('#loss polyline').length") == 2
    assert browser.value("document.querySelectorAll('#parts polygon').length") >= 5

    # pictures move: each look adds a point, up to as many as are kept
    browser.value("window.drawn = 0; new MutationObserver(() => window.drawn++).observe("
                  "document.getElementById('rate'), {childList: true})")  # fmt: skip
    browser.wait_for("window.drawn > 2")

    picture = base64.b64decode(browser.call("Page.captureScreenshot", format="png")["data"])
    width, height = struct.unpack(">II", picture[16:24])
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    assert width >= 1000
    assert height >= 500
    assert len(picture) > 20_000, "there is nothing on it"

    (job / f"tfdist-job-{JOB}-x").rename(job / "gone")
    browser.wait_for("document.getElementById('state').textContent === 'ended'")
    (job / "gone").rename(job / f"tfdist-job-{JOB}-x")
    requested = {one["request"]["url"] for one in browser.events("Network.requestWillBeSent")}
    assert requested - {f"{address}favicon.ico"} == {address, f"{address}history", f"{address}events"}
    assert browser.events("Runtime.exceptionThrown") == []
    errors = [one["entry"]["text"] for one in browser.events("Log.entryAdded") if one["entry"]["level"] == "error"]
    assert [one for one in errors if "favicon" not in one and "404" not in one] == []


def test_a_job_that_has_ended_is_drawn_from_its_event_file(browser: Browser, job: Path) -> None:  # noqa: F811
    with Page(Past(ended(job)), every=0.05) as past:
        browser.open(f"http://127.0.0.1:{past.port}/")
        browser.wait_for("document.getElementById('state').textContent.startsWith('ended; start 1')")
        text = browser.value("document.body.innerText")
        assert not absent(text, "verdict x", "code 0 ", "1 restarts")
        assert browser.value("document.querySelectorAll('#workers i').length") == 2, "input and forward"
        assert browser.events("Runtime.exceptionThrown") == []
