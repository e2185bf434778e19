"""A certificate is renewed while RocketMQ's own clients work over TLS."""

from __future__ import annotations

import shutil
import signal
import ssl
from pathlib import Path

import pytest

from certificates import Certificate, write_certificate
from delivering import wait_until
from interop.clients.brokers import ReputBroker
from interop.clients.java_clients import RunningClients, run_java

pytestmark = [pytest.mark.java, pytest.mark.processes, pytest.mark.slow, pytest.mark.long]

VERSION = "5.3.3"
TLS = ("-Dtls.enable=true",)


def shown(broker: ReputBroker) -> str:
    """Return the certificate that a new connection gets."""
    return ssl.get_server_certificate(("127.0.0.1", broker.port))


def test_clients_go_on_while_the_certificate_is_renewed(reput_broker, tmp_path):
    """No send fails, with the former connections or with new ones, and nothing is lost; a certificate that is not
    complete yet changes nothing."""
    certificate = write_certificate(tmp_path, "server")
    broker = reput_broker(
        settings={
            "tls_server_mode": "enforcing",
            "tls_server_cert_path": certificate.cert,
            "tls_server_key_path": certificate.key,
        }
    )

    def new_certificate() -> Certificate:
        (tmp_path / "next").mkdir(exist_ok=True)
        return write_certificate(tmp_path / "next", "server")

    def renew() -> Certificate:
        following = new_certificate()
        for source, target in zip(following[:2], certificate[:2], strict=True):
            shutil.copy(source, target)
        return following

    def reload() -> None:
        broker.launched.process.send_signal(signal.SIGHUP)

    def join(name: str, *scenarios: str) -> RunningClients:
        return RunningClients(VERSION, tmp_path / name, broker.name_server, *scenarios, options=TLS)

    run_java(VERSION, tmp_path / "first", broker.name_server, "send=orders:40:first", options=TLS)
    clients = [join("first-clients", "produce-anywhere=orders", "consume=orders:group")]
    producer = clients[0]
    producer.advance("produce-anywhere", 200)
    for number in range(3):
        before = shown(broker)
        # The certificate has come, its key has not.
        shutil.copy(new_certificate().cert, certificate.cert)
        refusals = warnings(broker)
        reload()
        wait_until(lambda refusals=refusals: warnings(broker) > refusals)
        assert shown(broker) == before
        following = renew()
        reload()
        wait_until(lambda following=following: shown(broker).split() == following.cert.read_text().split())
        clients.append(join(f"clients-{number}", "consume=orders:group"))
        clients[-1].advance("consume", 20)
        producer.advance("produce-anywhere", 200)
    said = [one.finish() for one in clients]
    sent = said[0]["produce-anywhere"]
    assert not sent.error
    assert len(sent.lines) > 800
    assert set(sent.lines) <= {line for one in said for line in one["consume"].lines}


def warnings(broker: ReputBroker) -> int:
    """Return how often the broker has refused a certificate."""
    return Path(broker.launched.log).read_text("utf-8", "replace").count("the certificate cannot be used")
