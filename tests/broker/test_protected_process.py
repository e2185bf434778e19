"""`reput serve` with a certificate and accounts, as a process; and what many idle connections cost it."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
from contextlib import ExitStack

import pytest
import yaml
from cryptography import x509

from access_rules import java_signed
from broker.test_serve import REPUT, Served
from certificates import write_certificate
from delivering import LIMIT_S, wait_until
from reput.remoting.request_code import RequestCode as Code
from reput.remoting.tls import client_context
from serving import RawClient, send_fields

pytestmark = pytest.mark.processes

ACCOUNT = ("orders-key", "orders-secret")
IDLE_COUNT = 2000
IDLE_MEMORY_MAX = 40 << 20


@pytest.fixture
def certificate(tmp_path):
    """A certificate and its key."""
    return write_certificate(tmp_path, "server")


@pytest.fixture
def accounts(tmp_path):
    """A file of accounts."""
    path = tmp_path / "plain_acl.yml"
    account = {"accessKey": ACCOUNT[0], "secretKey": ACCOUNT[1], "topicPerms": ["orders=PUB"]}
    path.write_text(yaml.safe_dump({"accounts": [account]}))
    return path


def encrypted(port):
    """Return a connection with TLS."""
    context = client_context()
    return RawClient(("127.0.0.1", port), wrap=lambda plain: context.wrap_socket(plain))


def serial_of(client):
    """Return the serial number of the certificate of a connection."""
    return x509.load_der_x509_certificate(client.socket.getpeercert(binary_form=True)).serial_number


def send(client, fields=None):
    """Send a message, signed; return the code of the answer."""
    signed = java_signed(send_fields("orders", fields=fields), b"body", *ACCOUNT)
    return client.ask(Code.SEND_MESSAGE_V2, signed, b"body").code


def test_a_certificate_and_accounts_from_the_command_line(tmp_path, certificate, accounts):
    """SIGHUP to the process that was started reads both anew; connections go on."""
    options = ("--tls-cert", certificate.cert, "--tls-key", certificate.key, "--tls", "enforcing", "--acl", accounts)
    with Served(tmp_path / "store", *map(str, options)) as served, encrypted(served.port) as client:
        assert send(client) == 0
        assert client.ask(Code.SEND_MESSAGE_V2, send_fields("orders"), b"body").code == 1
        with pytest.raises((ConnectionError, EOFError)), RawClient(("127.0.0.1", served.port)) as plain:
            plain.ask(Code.GET_BROKER_CLUSTER_INFO)
        following = write_certificate(tmp_path, "server")
        served.process.send_signal(signal.SIGHUP)

        def has_following():
            with encrypted(served.port) as other:
                return serial_of(other) == following.serial

        wait_until(has_following)
        assert send(client) == 0
        assert serial_of(client) == certificate.serial


def test_a_broker_with_accounts_may_listen_beyond_this_machine(tmp_path, accounts):
    """Without them only if the operator says so."""
    command = [REPUT, "serve", tmp_path / "store", "--listen", "0.0.0.0:0", "--name-server-listen", "0.0.0.0:0"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert refused.returncode == 2
    assert "--acl" in refused.stderr
    process = subprocess.Popen([*command, "--acl", accounts], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline().startswith("ready ")
    finally:
        process.terminate()
        process.communicate(timeout=LIMIT_S)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--tls", "enforcing"], "TLS needs a certificate"),
        (["--tls-cert", "/none.pem"], "/none.pem"),
        (["--acl", "/none.yml"], "/none.yml"),
        (["--set", "broker_hooks=none"], "broker_hooks=none"),
    ],
)
def test_what_cannot_be_used_is_told_at_once(tmp_path, options, text):
    """The broker is not started again and again."""
    command = [REPUT, "serve", tmp_path / "store", "--listen", "127.0.0.1:0", "--name-server", "none", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode != 0
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def memory_of(pid):
    """Return the bytes that a process has in memory of its own."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        kilobytes = re.findall(r"^Private_(?:Clean|Dirty): +(\d+) kB$", file.read(), re.MULTILINE)
    return sum(map(int, kilobytes)) << 10


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "tls-port"])
def test_idle_connections_cost_little(tmp_path, certificate, is_encrypted):
    """2,000 of them at most 40 MiB in all, whether they have said something before or not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    options = ["--tls-cert", str(certificate.cert), "--tls-key", str(certificate.key)] if is_encrypted else []
    try:
        with Served(tmp_path / "store", *options) as served, ExitStack() as stack:
            place = json.loads((served.store / "reput" / "broker.json").read_text())
            with RawClient(("127.0.0.1", served.port)) as client:
                assert client.ask(Code.GET_BROKER_CLUSTER_INFO).code == 0
                before = memory_of(place["pid"])
            clients = [stack.enter_context(RawClient(("127.0.0.1", served.port))) for _ in range(IDLE_COUNT)]
            for client in clients[::2]:
                assert client.ask(Code.GET_BROKER_CLUSTER_INFO).code == 0
            assert len(os.listdir(f"/proc/{place['pid']}/fd")) > IDLE_COUNT
            taken = memory_of(place["pid"]) - before
            print(f"{IDLE_COUNT} idle connections take {taken >> 10} KiB")
            assert taken <= IDLE_MEMORY_MAX
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
