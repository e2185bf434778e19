"""The keeper of `reput serve`, and what it makes of a broker's process that never serves."""

from __future__ import annotations

import os
import socket

import pytest

from reput.broker.broker_process import give
from reput.broker.keeper import Keeper, StartedBroker
from reput.broker.serve_options import ServeOptions
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
