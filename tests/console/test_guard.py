"""What a console refuses: other hosts, other sites, forms without a token, strangers."""

from __future__ import annotations

import asyncio
import base64
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from starlette.testclient import TestClient

from command_line import run_reput
from consoles import TOKEN, Browser, store_browser
from delivering import wait_until
from reput.console import accounts as accounts_module
from reput.console import guard
from reput.console.accounts import FREE_FAILURES, WAITING_MAX, Accounts, hashed
from reput.console.console_options import console_of
from reput.console.console_server import uvicorn_config
from reput.console.console_target import ConsoleStore
from reput.errors import ConfigError
from reput.store.state.recorded_settings import load_store_settings

PASSWORD = "correct horse battery"


@pytest.fixture
def store(golden_read_only):
    """A store that nobody has open."""
    return golden_read_only("basic-4.9") / "store"


@pytest.fixture
def users(tmp_path):
    """A file of users."""
    path = tmp_path / "users"
    path.write_text(f"# operators\n{account('ada')}\n{account('bob')}\n")
    path.chmod(0o600)
    return path


def account(name: str) -> str:
    """Return a line of the file of users; its key is computed fast."""
    return hashed(PASSWORD, cost=2, parallelism=1).line(name)


def log_in(browser: Browser, password: str = PASSWORD, name: str = "ada") -> tuple[int, str]:
    """Log in; return the status and the page."""
    token = TOKEN.search(browser.text("/login"))
    assert token is not None
    answer = browser.client.post("/login", data={"csrf": token[1], "name": name, "password": password})
    return answer.status_code, answer.text


@pytest.mark.slow
def test_every_answer_carries_a_strict_content_policy(store):
    """Scripts and styles come from the console alone, and no other page may frame it."""
    with store_browser(store) as browser:
        for path in ("/", "/nothing", "/static/console.js"):
            headers = browser.client.get(path).headers
            policy = headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'")
            assert "unsafe" not in policy
            assert headers["x-frame-options"] == "DENY"
            # With no-referrer, browsers send forms with the origin "null", which is refused.
            assert headers["referrer-policy"] == "same-origin"
            assert headers["x-content-type-options"] == "nosniff"
        assert browser.client.get("/").headers["cache-control"] == "no-store"


@pytest.mark.slow
def test_a_name_of_another_machine_does_not_reach_a_console_on_loopback(store):
    """A page elsewhere could otherwise point a name of its own at 127.0.0.1."""
    with store_browser(store) as browser:
        answer = browser.client.get("/", headers={"host": "evil.example:9180"})
        assert (answer.status_code, answer.text) == (400, "the console does not know this host\n")
        assert browser.client.get("/", headers={"host": "127.0.0.1:1"}).status_code == 200
    with store_browser(store, hosts=frozenset()) as browser:
        assert browser.client.get("/", headers={"host": "broker.example"}).status_code == 200


@pytest.mark.parametrize(
    ("headers", "data", "status"),
    [
        ({}, {}, 403),
        ({}, {"csrf": "x"}, 403),
        ({"origin": "http://evil.example"}, None, 403),
        ({}, {"csrf": "x" * 20_000}, 413),
        ({"origin": "http://localhost:9180"}, None, 503),
    ],
    ids=["no token", "wrong token", "another site", "too large", "the console's own"],
)
def test_a_form_needs_the_token_of_its_session_and_no_other_origin(headers, data, status, store):
    """The last one is let through; it fails because nobody has the store open."""
    with store_browser(store) as browser:
        token = TOKEN.search(browser.text("/groups/nothing/reset?to=latest", 400) + '<i name="csrf" value="-">')
        assert token is not None
        session = browser.console.guard.sessions[browser.client.cookies["reput_console"]]
        form = {"csrf": session.csrf} if data is None else data
        answer = browser.client.post("/dispatchers/index/pause", data=form, headers=headers)
        assert answer.status_code == status


def test_a_session_s_cookie_is_kept_from_scripts_and_other_sites(store):
    """HttpOnly and SameSite=Strict."""
    with store_browser(store) as browser:
        cookie = browser.client.get("/").headers["set-cookie"]
    assert "HttpOnly; SameSite=Strict" in cookie


def test_consoles_of_one_host_leave_each_other_s_sessions(store):
    """A browser sends a cookie to all ports of a host."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        console = console_of(ConsoleStore(store, partial(load_store_settings, store, None, [])), listener, None)
        port = listener.getsockname()[1]
    with TestClient(console.guard, base_url="http://127.0.0.1") as client:
        client.get("/")
        assert list(client.cookies) == [f"reput_console_{port}"]


@pytest.mark.parametrize(("scheme", "is_secure"), [("http", False), ("https", True)])
def test_a_session_that_began_over_tls_is_not_sent_without(store, scheme, is_secure):
    """TLS of the console's own, or of a proxy that says so."""
    with store_browser(store) as browser:
        assert ("; Secure" in browser.client.get(f"{scheme}://localhost/").headers["set-cookie"]) == is_secure


def test_a_scraper_does_not_push_out_the_session_of_a_browser(store, monkeypatch):
    """It keeps no cookie, and comes every few seconds for months."""
    monkeypatch.setattr(guard, "SESSIONS_MAX", 3)
    with store_browser(store) as browser:
        browser.text("/topics")
        session = browser.client.cookies["reput_console"]
        for path in ("/metrics", "/static/console.js"):
            for _ in range(4):
                browser.client.cookies.clear()
                assert "set-cookie" not in browser.client.get(path).headers
        assert session in browser.console.guard.sessions


@pytest.mark.slow
def test_where_there_are_accounts_nothing_is_shown_before_the_login(store, users):
    """Pages lead to the form; streams and metrics say 401. Afterwards everything is there, until the log-out."""
    with store_browser(store, accounts=Accounts(users)) as browser:
        for path in ("/", "/topics", "/log"):
            answer = browser.client.get(path, follow_redirects=False)
            assert (answer.status_code, answer.headers["location"]) == (303, f"/login?to={path}")
        for path in ("/events", "/metrics"):
            assert browser.client.get(path).status_code == 401
        before = browser.text("/login") and browser.client.cookies["reput_console"]
        status, page = log_in(browser)
        assert status == 200
        assert "Log out ada" in page
        assert browser.client.cookies["reput_console"] != before, "a token from before the login must not be worth it"
        assert "Segments" in browser.text("/log")
        assert "login" in browser.text("/audit")
        browser.send("/logout", "/")
        assert browser.client.get("/", follow_redirects=False).status_code == 303


@pytest.mark.slow
def test_wrong_passwords_make_the_next_attempt_wait_longer_each_time(store, users):
    """Even one with the right password. Who else comes from the address, perhaps through a proxy, is not kept out."""
    now = [0.0]
    with store_browser(store, accounts=Accounts(users, lambda: now[0])) as browser:
        for password in ("wrong", PASSWORD + "x", "", "x", "y"):
            status, page = log_in(browser, password)
            assert status == 403
            assert "name or password is wrong" in page
        assert log_in(browser, PASSWORD, "eve")[0] == 403, "there is no such user"
        status, page = log_in(browser)
        assert status == 429
        assert "try again in 2 s" in page
        noted = [line.outcome for line in browser.console.audit.shown]
        assert noted == ["refused: name or password is wrong"] * 6, "what is refused at once must not fill the log"
        now[0] = 2.0
        assert log_in(browser, "wrong")[0] == 403
        assert "try again in 4 s" in log_in(browser)[1]
        browser.client.cookies.clear()
        assert log_in(browser, PASSWORD, "bob")[0] == 200, "the name has no failures of its own"
        browser.client.cookies.clear()
        now[0] = 6.0
        assert log_in(browser)[0] == 200
        browser.client.cookies.clear()
        assert log_in(browser, "wrong")[0] == 403, "a login forgets the failures before it"


def test_attempts_at_the_same_time_are_all_counted(users):
    """Not each of them is the first one; and few wait for a key to be computed, so that pages keep their threads."""
    accounts = Accounts(users)
    assert accounts.attempt("ada", PASSWORD, "10.0.0.7").accepted
    with ThreadPoolExecutor(12) as threads, accounts.computing:
        attempts = [threads.submit(accounts.attempt, "ada", f"wrong {at}", "10.0.0.7") for at in range(12)]
        wait_until(lambda: sum(attempt.done() for attempt in attempts) == 12 - FREE_FAILURES)
        assert accounts.attempt("ada", PASSWORD, "10.0.0.8").accepted, "what was accepted before needs no key"
    assert not any(attempt.result().accepted for attempt in attempts)
    assert accounts.attempt("ada", PASSWORD, "10.0.0.7").wait_s > 0.0


def test_attempts_that_are_refused_at_once_do_not_end_the_pause_of_a_name(users, monkeypatch):
    """What is remembered is bounded: only attempts that cost a stranger a key push out others."""
    monkeypatch.setattr(accounts_module, "REMEMBERED_MAX", 20)
    accounts = Accounts(users)
    assert accounts.attempt("bob", PASSWORD, "10.0.0.7").accepted
    for at in range(FREE_FAILURES):
        accounts.attempt("ada", f"wrong {at}", "10.0.0.7")
    with ThreadPoolExecutor(WAITING_MAX) as threads, accounts.computing:
        for at in range(WAITING_MAX):
            threads.submit(accounts.attempt, f"eve {at}", "wrong", "10.0.0.7")
        wait_until(lambda: accounts.waiting == WAITING_MAX)
        assert all(accounts.attempt(f"eve {at}", "wrong", "10.0.0.7").wait_s == 1.0 for at in range(8, 100))
        assert accounts.attempt("bob", PASSWORD, "10.0.0.8").accepted, "what was accepted before waits for no key"
        assert accounts.attempt("ada", PASSWORD, "10.0.0.7").wait_s > 1.0


def test_of_a_long_name_a_part_is_remembered(users):
    """Strangers must not fill the memory."""
    accounts = Accounts(users)
    assert not accounts.attempt("a" * 10_000, "wrong", "10.0.0.7").accepted
    assert max(len(name) for name, _ in accounts.failures) <= 255


def test_a_scraper_logs_in_by_http_s_basic_form(store, users):
    """At /metrics alone."""
    with store_browser(store, accounts=Accounts(users)) as browser:
        for password, status in ((PASSWORD, 200), *[("wrong", 401)] * FREE_FAILURES, (PASSWORD, 429)):
            header = {"authorization": "Basic " + base64.b64encode(f"ada:{password}".encode()).decode()}
            assert browser.client.get("/metrics", headers=header).status_code == status
            assert browser.client.get("/", headers=header, follow_redirects=False).status_code == 303
        noted = [line.outcome for line in browser.console.audit.shown]
        assert noted == ["refused: name or password is wrong"] * FREE_FAILURES


@pytest.mark.parametrize(
    ("text", "mode", "sentence"),
    [
        ("ada:scrypt$", 0o644, "others may read the file of users"),
        ("ada:short", 0o600, "an account has no hash of a password, but plain text: path=.* line=1 name=ada"),
        ("ada:scrypt$1073741824$8$1$c2hvcnQ=$c2hvcnQ=", 0o600, "an account has no hash"),
        ("no colon here at all", 0o600, "a line is no account: path="),
        ("\n# none\n", 0o600, "the file of users names none"),
    ],
)
def test_a_file_of_users_that_cannot_be_trusted_is_refused(text, mode, sentence, tmp_path):
    """The error names the line, never what stands in it."""
    path = tmp_path / "users"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=sentence) as raised:
        Accounts(path)
    assert "short" not in str(raised.value)
    if mode == 0o600:
        assert f"reput password {path} " in raised.value.advice


@pytest.mark.slow
def test_a_user_is_added_and_a_password_is_changed(tmp_path):
    """`reput password` keeps the other lines, and never writes a password as it is."""
    path = tmp_path / "users"
    assert run_reput("password", path, "ada", stdin=f"{PASSWORD}\n").stdout == "added: ada\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert run_reput("password", path, "bob", stdin=f"{PASSWORD}\n").code == 0
    changed = run_reput("password", path, "ada", stdin="another long password\n")
    assert changed.stdout == "changed: ada\n"
    assert PASSWORD not in path.read_text()
    accounts = Accounts(path)
    assert not accounts.attempt("ada", PASSWORD, "-").accepted
    assert accounts.attempt("ada", "another long password", "-").accepted
    assert accounts.attempt("bob", PASSWORD, "-").accepted
    assert "the password is too short" in run_reput("password", path, "eve", stdin="short\n").stderr
    assert "the name of a user" in run_reput("password", path, "e:ve", stdin=f"{PASSWORD}\n").stderr


def test_behind_a_proxy_the_client_s_own_address_counts():
    """Only that of the proxy that was named is believed."""
    seen = []

    async def application(scope, receive, send) -> None:
        seen.append(scope["client"][0])

    config = uvicorn_config(application, None, None, "10.0.0.7")
    config.load()
    for peer in ("10.0.0.7", "10.0.0.8"):
        scope = {"type": "http", "client": (peer, 1), "headers": [(b"x-forwarded-for", b"192.0.2.1")]}
        asyncio.run(config.loaded_app(scope, None, None))
    assert seen == ["192.0.2.1", "10.0.0.8"]
    with pytest.raises(ConfigError, match="neither an address nor a network: proxy=front"):
        uvicorn_config(application, None, None, "front")


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"])
def test_on_loopback_a_console_answers_to_its_own_address(store, address):
    """The one that it prints, also if it is not the usual one; a name that leads there is still refused."""
    with socket.socket() as listener:
        listener.bind((address, 0))
        target = ConsoleStore(store, partial(load_store_settings, store, None, []))
        hosts = console_of(target, listener, None).guard.hosts
    assert {address, "localhost"} <= hosts
    assert "127.0.0.9" not in hosts


def test_a_proxy_on_this_machine_passes_on_the_name_that_browsers_use(store, users):
    """With accounts a console on loopback answers to any name, and forms of that name are its own."""
    name = {"host": "console.example.org", "origin": "https://console.example.org"}
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        target = ConsoleStore(store, partial(load_store_settings, store, None, []))
        console = console_of(target, listener, users)
    with TestClient(console.guard) as client:
        token = TOKEN.search(client.get("/login", headers=name).text)
        assert token is not None
        fields = {"csrf": token[1], "name": "ada", "password": PASSWORD}
        assert client.post("/login", headers=name, data=fields).status_code == 200
        assert client.post("/login", headers={**name, "origin": "https://evil.example"}, data=fields).status_code == 403
