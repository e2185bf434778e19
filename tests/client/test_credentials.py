"""Clients of brokers that encrypt their connections and have accounts."""

from __future__ import annotations

import ssl

import pytest
import yaml

import reput
from broker.test_serve import Served
from certificates import write_certificate
from command_line import run_reput_process

pytestmark = pytest.mark.processes

ACCESS_KEY, SECRET_KEY = "orders-key", "orders-secret"


@pytest.fixture
def certificate(tmp_path):
    """A certificate, which is its own authority, and its key."""
    return write_certificate(tmp_path, "server")


@pytest.fixture
def served(tmp_path, certificate):
    """A broker that takes encrypted connections of one account alone."""
    accounts = tmp_path / "plain_acl.yml"
    account = {
        "accessKey": ACCESS_KEY,
        "secretKey": SECRET_KEY,
        "topicPerms": ["orders=PUB|SUB"],
        "groupPerms": ["billing=SUB"],
    }
    accounts.write_text(yaml.safe_dump({"accounts": [account]}))
    options = ("--tls", "enforcing", "--tls-cert", certificate.cert, "--tls-key", certificate.key, "--acl", accounts)
    with Served(tmp_path / "store", *map(str, options)) as found:
        yield found


def test_a_client_with_an_account_puts_and_consumes_over_tls(served, certificate):
    """The broker's certificate is checked with the authorities in the file; every request is signed."""
    with reput.connect(
        f"127.0.0.1:{served.name_server_port}", tls=certificate.cert, access_key=ACCESS_KEY, secret_key=SECRET_KEY
    ) as client:
        client.put(reput.Message("orders", b"one"))
        with client.consumer("billing", "orders") as consumer:
            record = consumer.receive(60)
            assert record is not None
            assert record.body == b"one"
            consumer.ack(record)


def test_a_wrong_key_is_refused_and_an_unknown_certificate_too(served, certificate, tmp_path):
    """Each with an error of its own, in time."""
    address = f"127.0.0.1:{served.name_server_port}"
    with (
        reput.connect(
            address, tls=certificate.cert, access_key=ACCESS_KEY, secret_key="another", timeout=3.0
        ) as client,
        pytest.raises((reput.RequestRefused, reput.BrokerError)),
    ):
        client.put(reput.Message("orders", b"one"))
    with reput.connect(address, tls=certificate.cert, access_key=ACCESS_KEY, secret_key=SECRET_KEY) as client:
        message_id = client.put(reput.Message("orders", b"one")).message_id
    for keys in ({}, {"access_key": ACCESS_KEY, "secret_key": "another"}):
        with reput.connect(address, tls=certificate.cert, **keys) as client, pytest.raises(reput.RequestRefused):
            client.query(key=message_id)
    other = write_certificate(tmp_path, "other").cert
    with (
        reput.connect(address, tls=other, access_key=ACCESS_KEY, secret_key=SECRET_KEY, timeout=3.0) as client,
        pytest.raises(reput.BrokerError, match="certificate"),
    ):
        client.put(reput.Message("orders", b"one"))


def test_credentials_are_checked_before_anything_is_connected(tmp_path):
    """Half an account, and a file without authorities."""
    with pytest.raises(reput.ConfigError, match="access_key='only'"):
        reput.connect("127.0.0.1:1", access_key="only")
    with pytest.raises(reput.ConfigError, match=r"absent\.pem"):
        reput.connect("127.0.0.1:1", tls=tmp_path / "absent.pem")
    reput.connect("127.0.0.1:1", tls=ssl.create_default_context()).close()


def test_verbs_take_credentials_from_the_environment(served, certificate, monkeypatch):
    """Other users of the machine see command lines, but no environment."""
    monkeypatch.setenv("REPUT_TLS", str(certificate.cert))
    monkeypatch.setenv("REPUT_ACCESS_KEY", ACCESS_KEY)
    monkeypatch.setenv("REPUT_SECRET_KEY", SECRET_KEY)
    done = run_reput_process("send", f"127.0.0.1:{served.name_server_port}", "orders", stdin="one\n")
    assert (done.code, done.stderr) == (0, "")
