"""The keeper of `reput serve`, and what it makes of a broker's process that never serves."""

from __future__ import annotations

import os
import signal
import socket
import threading

import msgspec
import pytest
from msgspec.structs import replace

from delivering import LIMIT_S, wait_until
from reput.broker import keeper
from reput.broker.broker_process import give
from reput.broker.keeper import HANDLED, Keeper, StartedBroker
from reput.broker.serve_options import Ready, ServeOptions
from reput.errors import BrokerError

OPTIONS = ServeOptions(
    store="store", config=None, assignments=[], given={}, listeners=[], broker="127.0.0.1:10911", name_server=None
)


@pytest.mark.parametrize("reads", [True, False])
def test_a_broker_that_dies_is_noticed_whether_it_has_read_its_options_or_not(reads):
    """The keeper can start it again: a connection with unread options is reset, and that is no error of the keeper."""
    ours, theirs = socket.socketpair()
    give(ours, b"options", [])
    if reads:
        theirs.recv(100)
    theirs.close()
    error = Keeper(OPTIONS, StartedBroker(os.getpid(), ours.detach())).wait_until_ready()
    assert isinstance(error, BrokerError)
    assert "ended before it was ready" in str(error)


@pytest.fixture
def handlers():
    """The keeper handles signals; afterwards the tests' own handlers do again."""
    former = [(number, signal.getsignal(number)) for number in HANDLED]
    yield
    for number, handler in former:
        signal.signal(number, handler)


def process_that(script: str, said: bytes = b"") -> StartedBroker:
    """Return a process in the place of a broker's, which runs a shell's *script* after it has *said* something."""
    ours, theirs = socket.socketpair()
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", script], os.environ)
    theirs.sendall(said)
    theirs.close()
    return StartedBroker(pid, ours.detach())


@pytest.mark.usefixtures("handlers")
def test_a_sigterm_while_a_broker_is_started_again_ends_the_new_one(monkeypatch):
    """It would otherwise serve on, although its keeper was told to stop."""

    def start(options: ServeOptions) -> StartedBroker:
        started = process_that("sleep 60 & wait; exit 3")
        os.kill(os.getpid(), signal.SIGTERM)
        return started

    monkeypatch.setattr(keeper, "start_broker", start)
    ready = msgspec.json.encode(Ready(os.getpid())) + b"\n"
    assert Keeper(OPTIONS, process_that("exit 3", ready)).run() == 0


@pytest.mark.processes
@pytest.mark.usefixtures("handlers")
def test_a_broker_that_stops_leaves_no_port_behind_where_clients_wait(tmp_path):
    """They find another broker at once, instead of waiting until the store is closed."""
    stored, refused = tmp_path / "stored", []
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    script = f"trap : TERM; until [ -e '{stored}' ]; do sleep 0.05; done"

    def is_refused() -> bool:
        try:
            socket.create_connection(address, timeout=LIMIT_S).close()
        except ConnectionRefusedError:
            return True
        return False

    started = process_that(script, msgspec.json.encode(Ready(os.getpid())) + b"\n")
    ours = Keeper(replace(OPTIONS, listeners=[listener.detach()]), started)

    def stop() -> None:
        try:
            wait_until(lambda: signal.getsignal(signal.SIGTERM) == ours.stop)
            os.kill(os.getpid(), signal.SIGTERM)
            wait_until(is_refused)
            refused.append(True)
        finally:
            stored.touch()

    stopping = threading.Thread(target=stop)
    stopping.start()
    assert ours.run() == 0
    stopping.join()
    assert refused
