"""Followers of a broker with a certificate and accounts, and compression on the way: between reputs only."""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import yaml

import reput
from certificates import write_certificate
from delivering import wait_until
from replication.copies import assert_same_log, following, reaches
from reput.access.credentials import credentials
from reput.broker.broker import Broker
from reput.errors import BrokerError
from reput.replication import ha_connection
from reput.replication.ha_server import HaServer
from reput.replication.master_stream import MasterStream
from serving import ServedBroker, served

SEGMENT = 64 << 10
ADMIN = {"access_key": "follower", "secret_key": "follower-secret"}
READER = {"access_key": "consumer", "secret_key": "reader-secret"}


@contextmanager
def master(path, *, allows_unsigned: bool = False, **settings) -> Iterator[tuple[ServedBroker, HaServer, dict]]:
    """Serve a log of several segments; yield the broker, its HA port, and how `following` finds them."""
    servers: list[HaServer] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def make(engine, address) -> Broker:
        servers.append(HaServer(engine, listener))
        broker = Broker(engine, address, ha_server=servers[0], ha_allows_unsigned=allows_unsigned)
        servers[0].start(broker.turn)
        return broker

    with served(path / "master", make=make, mapped_file_size_commit_log=SEGMENT, **settings) as broker:
        broker.engine.writer.put_batch([reput.Message("orders", b"message " * 100) for _ in range(200)])
        try:
            yield broker, servers[0], {"broker": "{}:{}".format(*broker.address)}
        finally:
            servers[0].stop()


@pytest.fixture
def protection(tmp_path) -> dict[str, object]:
    """Settings of a broker that demands TLS, and accounts of an administrator and a consumer."""
    made = write_certificate(tmp_path, "server")
    accounts = [
        {"accessKey": "follower", "secretKey": "follower-secret", "admin": True},
        {"accessKey": "consumer", "secretKey": "reader-secret", "defaultTopicPerm": "SUB"},
    ]
    (tmp_path / "acl.yml").write_text(yaml.safe_dump({"accounts": accounts}))
    return {
        "tls_server_mode": "enforcing",
        "tls_server_cert_path": str(made.cert),
        "tls_server_key_path": str(made.key),
        "acl_enable": True,
        "acl_file": str(tmp_path / "acl.yml"),
    }


def address_of(server: HaServer) -> str:
    """Return where followers connect."""
    return "{}:{}".format(*server.listener.getsockname())


def test_a_follower_with_an_account_copies_an_encrypted_log(tmp_path, protection):
    """Requests, overlap and log travel encrypted and signed; the copy goes on after a reopening."""
    with master(tmp_path, **protection) as (broker, server, found):
        copy, options = tmp_path / "copy", {**found, **ADMIN, "tls": protection["tls_server_cert_path"]}
        with following(address_of(server), copy, **options) as store:
            reaches(store, broker.engine.appended)
        broker.engine.writer.put_batch([reput.Message("orders", b"later")] * 300)
        with following(address_of(server), copy, **options) as store:
            reaches(store, broker.engine.appended)
            wait_until(lambda: server.acknowledged_by_count(1) == broker.engine.appended)
        assert_same_log(tmp_path / "master", copy, 0, broker.engine.appended, SEGMENT)


def test_followers_without_encryption_or_account_get_nothing(tmp_path, protection, caplog):
    """Neither reputs nor RocketMQ's slaves; the broker's log says why."""
    with caplog.at_level(logging.WARNING), master(tmp_path, **protection) as (_, server, found):
        tls = protection["tls_server_cert_path"]
        for options, reason in [
            ({**ADMIN}, "ended the connection|does not answer"),
            ({"tls": tls}, "REPUT_ACCESS_KEY"),
            ({"tls": tls, **READER}, "REPUT_ACCESS_KEY"),
        ]:
            with pytest.raises(BrokerError, match=reason):
                reput.follow(address_of(server), tmp_path / "copy", **found, **options)
        assert not (tmp_path / "copy").exists()
        with socket.create_connection(server.listener.getsockname(), timeout=60) as slave:
            slave.sendall(struct.pack(">q", 1))
            assert not gets_anything(slave)
        assert "it does not encrypt" in caplog.text


@pytest.mark.parametrize("allows_unsigned", [False, True])
def test_an_account_is_needed_on_the_port_itself(tmp_path, protection, allows_unsigned, caplog):
    """RocketMQ's slaves have none: they follow only where the operator trusts the network."""
    accounts = {name: protection[name] for name in ("acl_enable", "acl_file")}
    with master(tmp_path, allows_unsigned=allows_unsigned, **accounts) as (broker, server, _):
        with socket.create_connection(server.listener.getsockname(), timeout=60) as slave:
            slave.sendall(struct.pack(">q", 1))
            assert gets_anything(slave) is allows_unsigned
        assert ("it has no account" in caplog.text) is not allows_unsigned
        # A reput of an account that may only consume is refused by its signature, whatever the requests allow.
        with pytest.raises(BrokerError, match="refuses this follower"):
            stream(address_of(server), **READER)
        with stream(address_of(server), **ADMIN) as admitted:
            assert bytes(next(admitted.pieces(5.0, lambda: None)))[:4] == broker.engine.reader.store.read_log(0, 4)


def test_a_follower_whose_account_is_removed_gets_nothing_more(tmp_path, protection, monkeypatch, caplog):
    """A connection may last for months: the account counts as long as it does, not only when it begins."""
    monkeypatch.setattr(ha_connection, "ACCOUNT_CHECK_INTERVAL_S", 0.05)
    accounts = {name: protection[name] for name in ("acl_enable", "acl_file")}
    with (
        master(tmp_path, **accounts) as (broker, server, found),
        following(address_of(server), tmp_path / "copy", **found, **ADMIN) as store,
    ):
        end = broker.engine.appended
        reaches(store, end)
        (tmp_path / "acl.yml").write_text(yaml.safe_dump({"accounts": []}))
        wait_until(lambda: "a follower has gone" in caplog.text)
        assert "it is refused" in caplog.text
        broker.engine.writer.put(reput.Message("orders", b"not for him"))
        wait_until(lambda: "No acl config for follower" in (store.following.reason or ""))
        assert store.durable == end


def gets_anything(slave: socket.socket) -> bool:
    """Return whether the master sends something before it ends the connection."""
    try:
        return slave.recv(1) != b""
    except ConnectionResetError:
        return False


def stream(address: str, access_key: str, secret_key: str):
    """Return a connection to an HA port."""
    return MasterStream(address, 0, SEGMENT, is_reput=True, credentials=credentials(None, access_key, secret_key))


@pytest.mark.parametrize("has_library", [True, False])
def test_a_follower_may_have_its_frames_compressed(tmp_path, monkeypatch, has_library):
    """The log is the same; a master without the library sends the bytes as they are."""
    sent: list[tuple[int, int]] = []
    compressed = ha_connection.HaConnection.compressed

    def noted(self, body: bytes) -> bytes:
        result = compressed(self, body)
        sent.append((len(body), len(result)))
        return result

    monkeypatch.setattr(ha_connection.HaConnection, "compressed", noted)
    if not has_library:
        monkeypatch.setattr(ha_connection, "compressor", lambda: None)
    with master(tmp_path) as (broker, server, found):
        with following(address_of(server), tmp_path / "copy", ha_compression="zstd", **found) as store:
            reaches(store, broker.engine.appended)
        whole, on_the_way = (sum(sizes) for sizes in zip(*sent, strict=True))
        assert whole + 1 >= broker.engine.appended
        assert (on_the_way < whole / 3) is has_library
        assert_same_log(tmp_path / "master", tmp_path / "copy", 0, broker.engine.appended, SEGMENT)
