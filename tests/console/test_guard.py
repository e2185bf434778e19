"""What a console refuses: other hosts, other sites, forms without a token, strangers."""

from __future__ import annotations

import base64

import pytest

from consoles import TOKEN, Browser, store_browser
from reput.console.accounts import Accounts
from reput.errors import ConfigError

PASSWORD = "correct horse battery"


@pytest.fixture
def store(golden_read_only):
    """A store that nobody has open."""
    return golden_read_only("basic-4.9") / "store"


@pytest.fixture
def users(tmp_path):
    """A file of users."""
    path = tmp_path / "users"
    path.write_text(f"# operators\nada:{PASSWORD}\n")
    path.chmod(0o600)
    return path


def log_in(browser: Browser, password: str = PASSWORD, name: str = "ada") -> tuple[int, str]:
    """Log in; return the status and the page."""
    token = TOKEN.search(browser.text("/login"))
    assert token is not None
    answer = browser.client.post("/login", data={"csrf": token[1], "name": name, "password": password})
    return answer.status_code, answer.text


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


def test_a_wrong_password_is_refused_and_many_are_slowed_down(store, users):
    """After five failures the address waits a minute, even with the right one."""
    now = [0.0]
    with store_browser(store, accounts=Accounts(users, lambda: now[0])) as browser:
        for password, name in (("wrong", "ada"), (PASSWORD, "bob"), ("", ""), ("x", "ada"), ("y", "ada")):
            status, page = log_in(browser, password, name)
            assert status == 403
            assert "name or password is wrong" in page
        assert "too many attempts" in log_in(browser)[1]
        now[0] = 61.0
        assert log_in(browser)[0] == 200


def test_a_scraper_logs_in_by_http_s_basic_form(store, users):
    """At /metrics alone."""
    with store_browser(store, accounts=Accounts(users)) as browser:
        for password, status in ((PASSWORD, 200), ("wrong", 401)):
            header = {"authorization": "Basic " + base64.b64encode(f"ada:{password}".encode()).decode()}
            assert browser.client.get("/metrics", headers=header).status_code == status
            assert browser.client.get("/", headers=header, follow_redirects=False).status_code == 303


@pytest.mark.parametrize(
    ("text", "mode", "sentence"),
    [
        ("ada:" + PASSWORD, 0o644, "others may read the file of users"),
        ("ada:short", 0o600, "a line is no account: path="),
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
