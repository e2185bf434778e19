"""The recipes of docs/web-servers.md, run with the real servers and the page's files."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import reput
from delivering import wait_until
from source_tree import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.slow]

PAGE = ROOT / "docs" / "web-servers.md"
FILE = re.compile(r"[Pp]ut\s+this\s+into\s+`([^`]+)`:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WAIT_S = 60.0
ADDRESS = "server.sock"


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder with every file of the page in it."""
    files = FILE.findall(PAGE.read_text("utf-8"))
    assert [name for name, _ in files] == [
        "shop.py",
        "shop_wsgi.py",
        "gunicorn.conf.py",
        "shop_broker.py",
        "thumbnails.py",
    ]
    for name, content in files:
        (tmp_path / name).write_text(content, "utf-8")
    return tmp_path


class Program:
    """A program of the page that runs in *folder*, and its output."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.log = folder / "log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *arguments], cwd=folder, stdout=log, stderr=subprocess.STDOUT
            )

    @property
    def printed(self) -> str:
        return self.log.read_text("utf-8")

    def wait_until_printed(self, words: str) -> None:
        wait_until(lambda: words in self.printed or self.process.poll() is not None)
        assert words in self.printed

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        assert self.process.wait(WAIT_S) in (0, -number), self.printed


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[Program]:
    """Run a program, and kill its remaining processes afterwards."""
    program = Program(folder, *arguments)
    try:
        yield program
    finally:
        program.process.kill()
        program.process.wait()


def post(folder: Path, body: bytes) -> tuple[int, bytes]:
    """Post *body* to a server's socket, and return the status and the answer."""
    connection = http.client.HTTPConnection("localhost", timeout=WAIT_S)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(os.path.relpath(folder / ADDRESS))
    connection.request("POST", "/orders", body)
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def stored(folder: Path) -> list[bytes]:
    """Return the orders in a store that was closed cleanly."""
    assert not (folder / "store" / "abort").exists()
    with reput.open(folder / "store", read_only=True) as store:
        return [record.body for record in store.get("orders")]


@pytest.mark.parametrize(
    "command",
    [
        ("uvicorn", "shop:app", "--workers", "1", "--uds", ADDRESS),
        ("gunicorn", "shop_wsgi:app", "--bind", f"unix:{ADDRESS}"),
    ],
    ids=lambda command: command[0],
)
def test_a_server_stores_what_is_posted_and_closes_its_store(folder, command, monkeypatch):
    """SIGTERM ends it cleanly, and the next opening finds every order."""
    monkeypatch.chdir(folder)
    with running(folder, *command) as server:
        wait_until(lambda: (folder / ADDRESS).exists() and (folder / "store" / "abort").exists())
        answers = [post(folder, b"order %d" % number) for number in range(3)]
        assert [status for status, _ in answers] == [200] * 3, server.printed
        server.end()
    assert stored(folder) == [b"order 0", b"order 1", b"order 2"]


def test_a_new_server_waits_until_the_old_one_has_closed_the_store(folder, monkeypatch):
    """Like in a deployment that starts the new process first."""
    monkeypatch.chdir(folder)
    command = ("uvicorn", "shop:app", "--uds")
    with running(folder, *command, "old.sock") as old:
        old.wait_until_printed("startup complete")
        with running(folder, *command, ADDRESS) as new:
            wait_until(lambda: new.printed.count("Waiting for application startup") == 2)
            old.end()
            wait_until(lambda: new.printed.count("startup complete") == 2)
            assert post(folder, b"after")[0] == 200
            new.end()
    assert stored(folder) == [b"after"]


def test_a_second_worker_is_told_who_has_the_store(folder, monkeypatch):
    """With advice, in gunicorn's own log."""
    monkeypatch.chdir(folder)
    configuration = folder / "gunicorn.conf.py"
    text = configuration.read_text("utf-8").replace("workers = 1", "workers = 2")
    configuration.write_text(text, "utf-8")
    server = folder / "shop_wsgi.py"
    server.write_text(server.read_text("utf-8").replace("lock_timeout=30.0", "lock_timeout=0.0"), "utf-8")
    with running(folder, "gunicorn", "shop_wsgi:app", "--bind", f"unix:{ADDRESS}") as program:
        program.wait_until_printed("another process writes this store: pid=")
        assert "connect to `reput serve STORE`" in program.printed


def test_with_preload_each_request_says_that_the_master_holds_the_store(folder, monkeypatch):
    """The store was opened before the fork."""
    monkeypatch.chdir(folder)
    (folder / "gunicorn.conf.py").unlink()
    with (folder / "shop_wsgi.py").open("a") as server:
        server.write("\n\nopen_store()\n")
    with running(folder, "gunicorn", "shop_wsgi:app", "--preload", "--bind", f"unix:{ADDRESS}") as program:
        wait_until(lambda: (folder / ADDRESS).exists() and "Booting worker" in program.printed)
        assert post(folder, b"order")[0] == 500
        program.wait_until_printed(f"its parent holds it: parent_pid={program.process.pid} ")


def test_four_workers_put_through_a_broker(folder, monkeypatch):
    """Each connects by the store's directory; the broker stores what all of them get."""
    monkeypatch.chdir(folder)
    # It is the configuration of a store inside one worker.
    (folder / "gunicorn.conf.py").unlink()
    ports = ("--listen", "127.0.0.1:0", "--name-server-listen", "127.0.0.1:0")
    broker = subprocess.Popen(
        [Path(sys.executable).with_name("reput"), "serve", "store", *ports], stdout=subprocess.PIPE, text=True
    )
    with broker:
        assert broker.stdout is not None
        assert broker.stdout.readline().startswith("ready ")
        command = ("gunicorn", "--workers", "4", "--threads", "8", "shop_broker:app", "--bind", f"unix:{ADDRESS}")
        with running(folder, *command) as server:
            wait_until(lambda: server.printed.count("Booting worker") == 4)
            answers = [post(folder, b"order %d" % number) for number in range(20)]
            assert [status for status, _ in answers] == [200] * 20, server.printed
            server.end()
        broker.terminate()
    with reput.open(folder / "store", read_only=True) as store:
        bodies = {record.body for record in store.records() if record.topic == "orders"}
    assert bodies == {b"order %d" % number for number in range(20)}


def test_a_pool_works_behind_one_consumer(folder):
    """Each message is handled once; SIGTERM lets the pool finish, and handled messages are acknowledged."""
    with reput.open(folder / "store") as store:
        store.put_batch([reput.Message("images", b"%d" % number) for number in range(20)])
    with running(folder, "thumbnails") as program:
        wait_until(lambda: program.printed.count("made a thumbnail") == 20)
        program.end()
    with reput.open(folder / "store", mode="inline") as store, store.consumer("thumbnails", "images") as consumer:
        assert consumer.receive(0.0) is None
