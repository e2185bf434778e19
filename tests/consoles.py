"""For tests of the console: a browser without a screen, which follows links and sends forms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from starlette.testclient import TestClient

from delivering import wait_until
from reput.console.accounts import Accounts
from reput.console.application import LOOPBACK_HOSTS, Console
from reput.console.audit_log import AuditLog
from reput.console.console_target import ConsoleStore, ConsoleTarget
from reput.store.state.recorded_settings import load_store_settings

__all__ = ["TOKEN", "Browser", "browser_of", "store_browser"]

TOKEN = re.compile(r'name="csrf" value="([^"]+)"')


class Browser:
    """Keeps cookies, and finds the token of a form."""

    def __init__(self, console: Console, client: TestClient) -> None:
        self.console = console
        self.client = client

    def text(self, path: str, status: int = 200) -> str:
        """Return a page."""
        answer = self.client.get(path)
        assert answer.status_code == status, answer.text
        return answer.text

    def send(self, path: str, form_page: str | None = None, **fields: str) -> str:
        """Send the form of a page, and return the page that it leads to."""
        token = TOKEN.search(self.text(form_page or path))
        assert token is not None
        answer = self.client.post(path, data={"csrf": token[1], **fields})
        assert answer.status_code == 200, answer.text
        return answer.text

    def outcome(self, page: str) -> str:
        """Wait until the action of a page has ended; return what became of it."""
        number = re.search(r'data-live="job\.(\d+)\.state"', page)
        assert number is not None, page
        job = self.console.jobs.jobs[int(number[1])]
        wait_until(lambda: job.state != "runs")
        return f"{job.state}: {job.outcome}"


@contextmanager
def browser_of(
    target: ConsoleTarget,
    *,
    accounts: Accounts | None = None,
    audit: Path | None = None,
    hosts: frozenset[str] = LOOPBACK_HOSTS,
) -> Iterator[Browser]:
    """Yield a browser on a console of *target*."""
    console = Console(target, accounts=accounts, hosts=hosts, audit=AuditLog(audit))
    with TestClient(console.guard, base_url="http://localhost:9180") as client:
        yield Browser(console, client)


@contextmanager
def store_browser(
    directory: Path,
    *,
    accounts: Accounts | None = None,
    audit: Path | None = None,
    hosts: frozenset[str] = LOOPBACK_HOSTS,
) -> Iterator[Browser]:
    """Yield a browser on a console of the store in *directory*."""
    load = partial(load_store_settings, directory, None, ())
    with (
        closing(ConsoleStore(directory, load)) as target,
        browser_of(target, accounts=accounts, audit=audit, hosts=hosts) as browser,
    ):
        yield browser
