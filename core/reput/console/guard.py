"""Guard: what every request to the console passes: host, session, login, CSRF token; and what every answer carries.

host      on loopback, without accounts, only names of this machine: a page elsewhere must not reach the console by a
          name of its own
session   a cookie that scripts cannot read and other sites do not send; kept in memory, gone when the console ends
login     where there are accounts; `/metrics` takes HTTP's Basic as well, for a scraper
POST      needs the session's token in the form, and no other origin
answer    a strict content policy: scripts and styles of this console alone, and no frame around it
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hmac
import math
import secrets
import time
from collections.abc import Callable, Mapping
from functools import partial
from urllib.parse import parse_qs, quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reput.console.accounts import Accounts, Attempt
from reput.console.audit_log import AuditLog
from reput.in_thread import in_thread

__all__ = ["COOKIE", "FORM_SIZE_MAX", "ConsoleSession", "Guard"]

COOKIE = "reput_console"
SESSION_S = 12 * 3600.0
SESSIONS_MAX = 1000
FORM_SIZE_MAX = 16 << 10
FIELDS_MAX = 32
OPEN_PATHS = ("/login", "/static/")
# A scraper keeps no cookie: a session for each scrape would push out those of browsers.
FORMLESS_PATHS = ("/metrics", "/static/")
# They are asked by scripts, for which a page to log in would be no answer.
BARE_PATHS = ("/events",)
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not no-referrer: browsers would send forms with the origin "null".
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class ConsoleSession:
    """One browser.

    Attributes:
        user: None: not logged in.
        csrf: the token that its forms carry.
    """

    def __init__(self, user: str | None, ends_at: float) -> None:
        self.user = user
        self.ends_at = ends_at
        self.csrf = secrets.token_urlsafe(32)


class Guard:
    """Wraps the application. One event loop.

    Args:
        audit: gets the attempts of scrapers with a wrong password.
        hosts: names under which the console may be asked; empty: any.
        accounts: None: no login is needed.
        cookie: its name. Browsers send a cookie to all ports of a host, so consoles on other ports have other names.
    """

    def __init__(
        self,
        application: ASGIApp,
        *,
        audit: AuditLog,
        hosts: frozenset[str],
        accounts: Accounts | None,
        cookie: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.application = application
        self.audit = audit
        self.hosts = hosts
        self.accounts = accounts
        self.cookie = cookie
        self.monotonic = monotonic
        self.sessions: dict[str, ConsoleSession] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it on."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.application(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request = Request(scope, receive)
        new_cookie: str | None = None

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                carried = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    carried[name] = value
                if not scope["path"].startswith("/static/"):
                    carried["cache-control"] = "no-store"
                if new_cookie is not None:
                    carried.append("set-cookie", self.set_cookie(request, new_cookie))
            await send(message)

        if self.hosts and host_of(headers.get("host", "")) not in self.hosts:
            await refuse(400, "the console does not know this host")(scope, receive, answer)
            return
        token = request.cookies.get(self.cookie, "")
        session = self.session(token)
        if session is None and self.accounts is None and not scope["path"].startswith(FORMLESS_PATHS):
            new_cookie, session = self.begin(None)
        scope.setdefault("state", {})
        scope["state"] |= {"session": session, "guard": self, "form": {}}
        refusal = await self.refusal(scope, headers, session)
        if refusal is None and scope["method"] == "POST":
            refusal = await self.check_form(request, headers, session)
        await (refusal or self.application)(scope, receive, answer)

    async def refusal(self, scope: Scope, headers: Headers, session: ConsoleSession | None) -> Response | None:
        """Return the answer for a request that needs a login; None: it has one, or needs none."""
        path = scope["path"]
        if self.accounts is None or path.startswith(OPEN_PATHS) or (session is not None and session.user is not None):
            return None
        if path == "/metrics":
            return await self.basic_refusal(self.accounts, headers, peer_of(scope))
        if path in BARE_PATHS:
            return refuse(401, "log in first")
        return RedirectResponse(f"/login?to={quote(path)}", 303)

    async def basic_refusal(self, accounts: Accounts, headers: Headers, address: str) -> Response | None:
        """Return the answer for a scraper; None: it has an account, in HTTP's Basic form."""
        kind, _, encoded = headers.get("authorization", "").partition(" ")
        refusal = PlainTextResponse("log in first\n", 401, {"www-authenticate": 'Basic realm="reput"'})
        if kind.lower() != "basic":
            return refusal
        try:
            name, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return refusal
        # Not in the event loop: a key takes a while.
        attempt = await in_thread(partial(self.attempt, accounts, name, password, address))
        if attempt.wait_s:
            wait = str(math.ceil(attempt.wait_s))
            return PlainTextResponse("too many attempts: try again later\n", 429, {"retry-after": wait})
        return None if attempt.accepted else refusal

    def attempt(self, accounts: Accounts, name: str, password: str, address: str) -> Attempt:
        """Return what became of an attempt of a scraper; one with a wrong password is noted as at the login page."""
        attempt = accounts.attempt(name, password, address)
        if not attempt.accepted and not attempt.wait_s:
            # It is refused whether the line can be written or not.
            with contextlib.suppress(OSError):
                self.audit.add_refused_login(address)
        return attempt

    async def check_form(self, request: Request, headers: Headers, session: ConsoleSession | None) -> Response | None:
        """Read the form of a POST into the request's state; return the answer if it is not to be trusted."""
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != headers.get("host"):
            return refuse(403, "the form is of another site")
        data = b""
        async for piece in request.stream():
            data += piece
            if len(data) > FORM_SIZE_MAX:
                return refuse(413, "the form is too large")
        try:
            fields = parse_qs(data.decode("ascii"), keep_blank_values=True, max_num_fields=FIELDS_MAX)
        except ValueError:
            return refuse(400, "the form cannot be read")
        form = {name: values[-1] for name, values in fields.items()}
        if session is None or not hmac.compare_digest(form.get("csrf", "").encode(), session.csrf.encode()):
            return refuse(403, "the form is too old, or of another site: load the page again, and send it again")
        request.scope["state"]["form"] = form
        return None

    # Sessions.

    def session(self, token: str) -> ConsoleSession | None:
        """Return a living session."""
        session = self.sessions.get(token)
        if session is not None and session.ends_at <= self.monotonic():
            del self.sessions[token]
            return None
        return session

    def begin(self, user: str | None) -> tuple[str, ConsoleSession]:
        """Begin a session; return its token. If there are too many, the oldest goes, first of those without a user."""
        if len(self.sessions) >= SESSIONS_MAX:
            strangers = (token for token, session in self.sessions.items() if session.user is None)
            del self.sessions[next(strangers, next(iter(self.sessions)))]
        token = secrets.token_urlsafe(32)
        session = self.sessions[token] = ConsoleSession(user, self.monotonic() + SESSION_S)
        return token, session

    def end(self, cookies: Mapping[str, str]) -> None:
        """End the session of a request."""
        self.sessions.pop(cookies.get(self.cookie, ""), None)

    def set_cookie(self, request: Request, token: str) -> str:
        """Return the header that gives the browser of *request* its session, over TLS only if it came so."""
        secure = "; Secure" if request.url.scheme == "https" else ""
        return f"{self.cookie}={token}; Path=/; Max-Age={int(SESSION_S)}; HttpOnly; SameSite=Strict{secure}"


def host_of(header: str) -> str:
    """Return the name in a Host header, without the port."""
    if header.startswith("["):
        return header.partition("]")[0] + "]"
    return header.partition(":")[0].lower()


def peer_of(scope: Scope) -> str:
    """Return the address that a request comes from."""
    client = scope.get("client")
    return client[0] if client else "-"


def refuse(status: int, text: str) -> PlainTextResponse:
    """Return the answer that says why a request is not answered."""
    return PlainTextResponse(f"{text}\n", status)
