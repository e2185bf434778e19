"""The console in a real browser: its script moves the numbers and draws the charts under the strict content policy."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading

import pytest

import reput
from command_line import REPUT
from delivering import LIMIT_S

BROWSER = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)

pytestmark = [
    pytest.mark.processes,
    pytest.mark.long,
    pytest.mark.skipif(BROWSER is None, reason="Chromium is not installed"),
]


def test_the_numbers_move_charts_are_drawn_and_a_dispatcher_is_paused_by_keyboard(tmp_path):
    """Nothing violates the content policy, and nothing is asked of another host."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the extra browser is not installed")
    stop = threading.Event()

    def put() -> None:
        while not stop.wait(0.005):
            store.put(reput.Message("orders", b"x"))

    said: list[str] = []
    asked: list[str] = []
    with reput.open(tmp_path / "store", mapped_file_size_commit_log=1 << 20) as store:
        putting = threading.Thread(target=put)
        putting.start()
        command = [REPUT, "console", store.directory, "--listen", "127.0.0.1:0"]
        console = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert console.stdout is not None
            address = re.search(r"console=(\S+)", console.stdout.readline())
            assert address is not None
            with playwright.sync_playwright() as driver:
                browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
                page = browser.new_page()
                page.set_default_timeout(LIMIT_S * 1000)
                page.on("console", lambda message: said.append(message.text))
                page.on("pageerror", lambda error: said.append(str(error)))
                page.on("request", lambda request: asked.append(request.url))
                page.goto(address[1])
                page.locator("[data-live=put]", has_text=re.compile(r"^[1-9][0-9.]*/s$")).wait_for()
                page.locator("svg polyline[points*=' ']").first.wait_for(state="attached")
                page.goto(f"{address[1]}dispatchers/index")
                page.get_by_role("link", name="Pause…").focus()
                page.keyboard.press("Enter")
                page.get_by_role("button", name="Yes: pause dispatcher=index").focus()
                page.keyboard.press("Enter")
                page.get_by_text("paused", exact=True).wait_for()
                browser.close()
            console.terminate()
            assert console.wait(LIMIT_S) == 0
        finally:
            console.kill()
            console.communicate()
            stop.set()
            putting.join()
        assert {row.name: row.state for row in store.status().dispatchers}["index"] == "PAUSED"
    assert said == []
    assert asked
    assert {url.startswith(address[1]) for url in asked} == {True}
