"""ConsoleContext: what the pages of a console share: the target, the accounts, and the templates."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

import reput
from reput.console.accounts import Accounts
from reput.console.audit_log import AuditLog
from reput.console.console_target import ConsoleStore, ConsoleTarget
from reput.console.guard import Guard, peer_of
from reput.console.jobs import Jobs, Work
from reput.console.live_feed import LiveFeed
from reput.console.message_view import time_text
from reput.watched.short_text import short_count, short_seconds, short_size

__all__ = ["FOLDER", "ConsoleContext"]

FOLDER = Path(__file__).parent


class ConsoleContext:
    """Of one console.

    Attributes:
        guard: what every request passes; set by `Console`.
    """

    guard: Guard

    def __init__(self, target: ConsoleTarget, accounts: Accounts | None, audit: AuditLog) -> None:
        """Show *target* to those who log in with *accounts*; None: to every client."""
        self.target = target
        self.accounts = accounts
        self.audit = audit
        self.jobs = Jobs(audit)
        self.feed = LiveFeed(target, self.jobs)
        self.templates = Environment(
            loader=FileSystemLoader(FOLDER / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        self.templates.filters |= {
            "count": short_count,
            "size": short_size,
            "seconds": short_seconds,
            "time": time_text,
        }

    def page(self, request: Request, template: str, title: str, status_code: int = 200, **values: object) -> Response:
        """Return a page."""
        session = request.state.session
        values = {
            "csrf": "" if session is None else session.csrf,
            "user": None if session is None else session.user,
            "title": title,
            "target": self.target.title,
            "is_store": isinstance(self.target, ConsoleStore),
            "version": reput.__version__,
            "path": request.url.path,
            **values,
        }
        return HTMLResponse(self.templates.get_template(template).render(values), status_code)

    def begin(self, request: Request, action: str, work: Work) -> Response:
        """Begin an action that was confirmed, and show how far it is."""
        session = request.state.session
        user = "-" if session is None or session.user is None else session.user
        job = self.jobs.begin(action, user, peer_of(request.scope), work)
        return RedirectResponse(f"/jobs/{job.number}", 303)
