"""Encrypted connections: modes of a port, certificates of both sides, a new certificate while the broker runs."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from functools import partial

import pytest
from cryptography import x509

from certificates import write_certificate
from reput.broker.broker import Broker
from reput.errors import ConfigError
from reput.remoting import listener as listener_module
from reput.remoting.remoting_client import RemotingClient, Unreachable
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.request_code import RequestCode
from reput.remoting.tls import ServerTls, TlsOptions, client_context
from serving import RawClient, served


@pytest.fixture
def certificate(tmp_path):
    """A certificate and its key."""
    return write_certificate(tmp_path, "server")


def serving(tmp_path, certificate, **settings):
    """Serve a store with a certificate."""
    paths = {"tls_server_cert_path": str(certificate.cert), "tls_server_key_path": str(certificate.key)}
    return served(tmp_path / "store", **paths, **settings)


def encrypted(broker, context=None):
    """Return a connection with TLS."""
    context = context or client_context()
    return RawClient(broker.address, wrap=lambda plain: context.wrap_socket(plain))


def serial_of(client):
    """Return the serial number of the certificate that a connection was made with."""
    return x509.load_der_x509_certificate(client.socket.getpeercert(binary_form=True)).serial_number


def test_one_port_takes_encrypted_and_plain_connections(tmp_path, certificate):
    """By default, once there is a certificate; the first byte tells which it is."""
    with serving(tmp_path, certificate) as broker, encrypted(broker) as one, broker.client() as other:
        for client in (one, other):
            assert client.send_message("T", bytes(100_000)).code == 0
            assert client.heartbeat("me").code == 0
        assert one.socket.version() in ("TLSv1.2", "TLSv1.3")
        assert broker.engine.appended > 200_000


def test_pipelined_requests_and_large_answers_are_encrypted(tmp_path, certificate):
    """Frames and TLS records begin and end where they like."""
    with serving(tmp_path, certificate) as broker, encrypted(broker) as client:
        opaques = [client.begin(RequestCode.GET_ALL_TOPIC_CONFIG) for _ in range(200)]
        assert all(client.answer_to(opaque).code == 0 for opaque in opaques)
        assert client.send_message("T", bytes(900_000)).code == 0
        broker.wait_until_readable()
        assert len(client.pull("g", "T").body) > 900_000


def test_a_plain_connection_is_refused_where_tls_is_enforced(tmp_path, certificate, caplog):
    """With one line in the log."""
    with (
        caplog.at_level(logging.WARNING),
        serving(tmp_path, certificate, tls_server_mode="enforcing") as broker,
        broker.client() as plain,
        encrypted(broker) as client,
    ):
        plain.begin(RequestCode.HEART_BEAT)
        assert plain.is_ended()
        assert client.heartbeat("me").code == 0
    assert "a connection without TLS is closed" in caplog.text


@pytest.mark.parametrize("settings", [{"tls_server_mode": "disabled"}, {"tls_server_cert_path": ""}])
def test_without_tls_a_handshake_is_refused(tmp_path, certificate, settings):
    """The connection ends; plain ones go on."""
    paths = {"tls_server_cert_path": str(certificate.cert), "tls_server_key_path": str(certificate.key)}
    with served(tmp_path / "store", **{**paths, **settings}) as broker, broker.client() as plain:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            encrypted(broker)
        assert plain.heartbeat("me").code == 0


def test_a_new_certificate_is_for_new_connections(tmp_path, certificate):
    """Those that are open go on with the former one."""
    with serving(tmp_path, certificate) as broker, encrypted(broker) as before:
        assert before.heartbeat("one").code == 0
        following = write_certificate(tmp_path, "server")
        broker.call(broker.broker.reload)
        with encrypted(broker) as after:
            assert (serial_of(before), serial_of(after)) == (certificate.serial, following.serial)
            assert after.heartbeat("two").code == 0
            assert before.heartbeat("one").code == 0


def test_a_new_certificate_that_is_none_changes_nothing(tmp_path, certificate, caplog):
    """It is logged, and the former one stays in use."""
    with caplog.at_level(logging.ERROR), serving(tmp_path, certificate) as broker:
        certificate.cert.write_text("no certificate")
        broker.call(broker.broker.reload)
        with encrypted(broker) as client:
            assert serial_of(client) == certificate.serial
    assert "the former configuration stays in use" in caplog.text
    assert "tls_server_cert_path" in caplog.text


def test_clients_may_need_a_certificate(tmp_path, certificate):
    """Signed by an authority that the broker trusts."""
    own, stranger = write_certificate(tmp_path, "client"), write_certificate(tmp_path, "stranger")
    settings = {"tls_server_need_client_auth": "require", "tls_server_trust_cert_path": str(own.cert)}
    with serving(tmp_path, certificate, **settings) as broker:
        context = client_context(cert_path=str(own.cert), key_path=str(own.key))
        with encrypted(broker, context) as client:
            assert client.heartbeat("me").code == 0
        for context in (client_context(), client_context(cert_path=str(stranger.cert), key_path=str(stranger.key))):
            # With TLS 1.3 the client learns of it when it reads.
            with pytest.raises((ssl.SSLError, ConnectionError, EOFError)), encrypted(broker, context) as client:
                client.heartbeat("me")


def test_our_client_checks_the_broker_if_it_is_told_whom_to_trust(tmp_path, certificate):
    """Else it takes any certificate, as RocketMQ's clients do."""
    stranger = write_certificate(tmp_path, "stranger")

    async def ask(address, context):
        client = RemotingClient(tls=context)
        try:
            return (await client.invoke(address, RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))).code
        finally:
            await client.close()

    with serving(tmp_path, certificate) as broker:
        address = f"127.0.0.1:{broker.address[1]}"
        assert asyncio.run(ask(address, client_context())) == 0
        assert asyncio.run(ask(address, client_context(trust_cert_path=str(certificate.cert)))) == 0
        with pytest.raises(Unreachable, match="certificate"):
            asyncio.run(ask(address, client_context(trust_cert_path=str(stranger.cert))))


def test_a_key_may_have_a_password(tmp_path):
    """A wrong one is refused at once, and nobody is asked for it."""
    certificate = write_certificate(tmp_path, "server", password="secret")
    with serving(tmp_path, certificate, tls_server_key_password="secret") as broker, encrypted(broker) as client:
        assert client.heartbeat("me").code == 0
    for password in ("", "wrong"):
        with pytest.raises(ConfigError, match="the certificate cannot be used"):
            ServerTls(TlsOptions(cert_path=str(certificate.cert), key_path=str(certificate.key), key_password=password))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"tls_server_mode": "enforcing"}, "TLS needs a certificate"),
        ({"tls_server_cert_path": "/none.pem"}, "tls_server_cert_path=/none.pem"),
        ({"tls_server_trust_cert_path": "/none.pem"}, "tls_server_trust_cert_path=/none.pem"),
        ({"tls_server_need_client_auth": "require"}, "no certificate of a client is accepted"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_refused_at_the_start(tmp_path, certificate, settings, text):
    """With the setting's name."""
    if not {"tls_server_mode", "tls_server_cert_path"} & settings.keys():
        settings = {**settings, "tls_server_cert_path": str(certificate.cert)}
        settings["tls_server_key_path"] = str(certificate.key)
    with pytest.raises(ConfigError, match=text), served(tmp_path / "store", **settings):
        pass


def test_handshakes_that_fail_end_their_connections(tmp_path, certificate, monkeypatch, caplog):
    """Half a handshake, garbage, nothing at all: none of them stays, and nothing is left to the loop."""
    monkeypatch.setattr(listener_module, "HANDSHAKE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(listener_module, "FIRST_BYTE_TIMEOUT_S", 0.2)
    with caplog.at_level(logging.WARNING), serving(tmp_path, certificate) as broker:
        clients = [broker.client() for _ in range(4)]
        clients[0].write(b"\x16\x03\x01\x02\x00\x01")
        clients[1].write(b"\x16" + bytes(1000))
        clients[2].write(b"\x16")
        clients[3].socket.shutdown(socket.SHUT_WR)
        with broker.client() as silent:
            assert all(client.is_ended() for client in (*clients, silent))
        for client in clients:
            client.close()
        (listener,) = broker.broker.server.listeners
        broker.reaches(lambda: listener.pending_count == 0)
        with encrypted(broker) as client:
            assert client.heartbeat("me").code == 0
    assert [record for record in caplog.records if record.name == "asyncio"] == []


def test_connections_that_are_not_made_yet_count_in_the_limit(tmp_path, certificate, caplog):
    """Those that send nothing, and those in their handshake, take descriptors as well."""
    make = partial(Broker, connections_max=3)
    with caplog.at_level(logging.WARNING), serving(tmp_path, certificate, make=make) as broker:
        server = broker.broker.server
        with encrypted(broker) as client, broker.client() as silent, broker.client() as half:
            assert client.heartbeat("me").code == 0
            half.write(b"\x16\x03\x01\x02\x00\x01")
            broker.reaches(lambda: len(server.listeners[0].begun) == 1 and server.listeners[0].pending_count == 2)
            for _ in range(2):
                with broker.client() as late:
                    assert late.is_ended()
            assert client.heartbeat("me").code == 0
            silent.close()
            broker.reaches(lambda: server.listeners[0].pending_count == 1)
            with broker.client() as other:
                assert other.heartbeat("me").code == 0
    assert caplog.text.count("further connections are closed") == 1


def test_bytes_come_one_by_one(tmp_path, certificate):
    """The first one decides; the rest of the handshake is the loop's."""
    context = client_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing)
    with serving(tmp_path, certificate) as broker, broker.client() as client:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                for byte in outgoing.read():
                    client.write(bytes([byte]))
                incoming.write(client.socket.recv(1 << 16))
        assert tls.version()
