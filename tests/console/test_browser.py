"""The console in a real browser: its script moves the numbers and draws the charts under the strict content policy."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading

import pytest

import reput
from command_line import REPUT
from contrasts import AAA_TEXT, contrast
from delivering import LIMIT_S, wait_until

# A browser that is not on the path; where the screenshots of docs/ are made anew.
BROWSER_VARIABLE, SCREENSHOTS_VARIABLE = "REPUT_BROWSER", "REPUT_SCREENSHOTS"
NAMES = ("chromium-headless-shell", "chromium", "google-chrome")
BROWSER = os.environ.get(BROWSER_VARIABLE) or next(filter(None, map(shutil.which, NAMES)), None)
SIZE = {"width": 1100, "height": 760}
# The colours that the browser has computed of each element with text, and of what it stands on.
COLOURS = """() => {
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!/, 0\\)$|transparent/.test(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  return [...document.querySelectorAll("body *")]
    .filter((element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()))
    .filter((element) => element.checkVisibility() && !element.closest("svg"))
    .map((element) => [getComputedStyle(element).color, ground(element), element.outerHTML.slice(0, 80)]);
}"""

pytestmark = [
    pytest.mark.processes,
    pytest.mark.long,
    pytest.mark.skipif(BROWSER is None, reason="Chromium is not installed"),
]


def low_contrasts(page) -> list[tuple[str, str, str]]:
    """Return the texts of a page with less contrast than seven to one."""

    def digits(colour: str) -> str:
        return "#" + "".join(f"{int(part):02x}" for part in re.findall(r"\d+", colour)[:3])

    return [row for row in page.evaluate(COLOURS) if contrast(digits(row[0]), digits(row[1])) < AAA_TEXT]


def take_screenshot(page, name: str) -> None:
    """Keep a picture of the page for the documentation, if a folder was named."""
    if folder := os.environ.get(SCREENSHOTS_VARIABLE):
        page.screenshot(path=f"{folder}/console-{name}.png")


def test_an_operator_sees_finds_and_acts_in_a_browser(tmp_path):
    """Numbers move, a message is found, a killed dispatcher is seen, a rebuild is followed, keys are enough to pause.

    Nothing violates the content policy, and nothing is asked of another host.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason="the extra browser is not installed")
    stop = threading.Event()

    def put_and_consume() -> None:
        """Put and take orders; number 17 is not taken, neither the first nor the second time."""
        with store.consumer("billing", "orders") as consumer:
            number = 0
            while not stop.wait(0.005):
                number += 1
                body = b'{"order": %d, "paid": true}' % number
                store.put(reput.Message("orders", body, keys=[f"order-{number}"], tags="paid"))
                record = consumer.receive(0)
                if record is None:
                    continue
                if record.properties["KEYS"] != "order-17":
                    consumer.ack(record)
                else:
                    consumer.nack(record, -1 if record.reconsume_times else 0)

    said: list[str] = []
    asked: list[str] = []
    levels = " ".join(["1s"] * 18)
    with reput.open(tmp_path / "store", mapped_file_size_commit_log=1 << 20, message_delay_level=levels) as store:
        putting = threading.Thread(target=put_and_consume)
        putting.start()
        command = [REPUT, "console", "store", "--listen", "127.0.0.1:0"]
        console = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
        try:
            assert console.stdout is not None
            address = re.search(r"console=(\S+)", console.stdout.readline())
            assert address is not None
            with playwright.sync_playwright() as driver:
                browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
                page = browser.new_page(viewport=SIZE, color_scheme="light")
                page.set_default_timeout(LIMIT_S * 1000)
                page.on("console", lambda message: said.append(message.text))
                page.on("pageerror", lambda error: said.append(str(error)))
                page.on("request", lambda request: asked.append(request.url))
                page.goto(address[1])
                page.locator("[data-live=put]", has_text=re.compile(r"^[1-9][0-9.]*/s$")).wait_for()
                page.locator("svg polyline[points*=' ']").first.wait_for(state="attached")
                if os.environ.get(SCREENSHOTS_VARIABLE):
                    # Until the charts have something to show.
                    while page.evaluate("points.length") < 30:
                        page.wait_for_timeout(500)
                take_screenshot(page, "overview")
                for path in ("", "topics", "groups", "messages?topic=orders", "brokers", "dispatchers", "log", "audit"):
                    page.goto(f"{address[1]}{path}")
                    for scheme in ("dark", "light"):
                        page.emulate_media(color_scheme=scheme)
                        assert low_contrasts(page) == [], f"{path} {scheme}"
                wait_until(lambda: len(list(store.administration.dead_letters("billing").read())) == 1)
                page.goto(f"{address[1]}messages")
                page.get_by_label("Topic").fill("orders")
                page.get_by_label("Key").fill("order-17")
                page.get_by_role("button", name="Find").click()
                page.locator("tbody a").first.click()
                page.get_by_role("heading", name="Its life").wait_for()
                while page.get_by_text("dead letter of billing").count() == 0:
                    # The program that has the store open writes offsets and index now and then.
                    page.reload()
                page.get_by_text("retried for billing").wait_for()
                assert low_contrasts(page) == []
                take_screenshot(page, "message")
                # A dispatcher is killed, seen, and started again, without a reload of the page.
                page.goto(f"{address[1]}dispatchers/index")
                page.locator('[data-live="d.index.restarts"]', has_text=re.compile("^0$")).wait_for()
                (pid,) = [row.pid for row in store.status().dispatchers if row.name == "index"]
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                page.locator('[data-live="d.index.restarts"]', has_text=re.compile("^1$")).wait_for()
                page.locator('[data-live="d.index.state"]', has_text=re.compile("^RUNNING$")).wait_for()
                # Its view is rebuilt meanwhile; the page follows it to its end.
                page.get_by_role("link", name="Rebuild…").click()
                page.get_by_role("button", name="Yes: rebuild dispatcher=index").click()
                page.locator("[data-live$='.outcome']", has_text=re.compile("swapped in")).wait_for()
                assert page.locator("progress").evaluate("bar => bar.value") == 100
                assert low_contrasts(page) == []
                page.goto(f"{address[1]}dispatchers/index")
                page.get_by_text("swapped in").wait_for()
                take_screenshot(page, "dispatcher")
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
