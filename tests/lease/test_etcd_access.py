"""An etcd that encrypts, asks for certificates, and knows users."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from certificates import Certificate, write_certificate
from replication.leases import Etcd, needs_etcd
from reput.errors import BrokerError, ConfigError
from reput.lease.agreement import ClusterState, Node
from reput.lease.etcd_access import PLAIN, access_of_environment
from reput.lease.etcd_agreement import EtcdAgreement, open_agreement

STATE = ClusterState(3, Node("a", "h:1", "h:2"), ("a",), "c", "n")
USERS = {"root": "sesame", "orders": "open:it", "guest": "guest"}


@pytest.fixture
def environment(monkeypatch) -> pytest.MonkeyPatch:
    """The variables of etcdctl, of which none is set yet."""
    for name in ("CACERT", "CERT", "KEY", "USER", "PASSWORD"):
        monkeypatch.delenv(f"ETCDCTL_{name}", raising=False)
    return monkeypatch


def opened(url: str) -> EtcdAgreement:
    """Return the agreement at *url*. Passwords take etcd a while."""
    agreement = open_agreement(url, 30.0)
    assert isinstance(agreement, EtcdAgreement)
    return agreement


@pytest.fixture
def certificate(tmp_path, environment) -> Certificate:
    """A certificate that the node trusts."""
    certificate = write_certificate(tmp_path, "etcd")
    environment.setenv("ETCDCTL_CACERT", str(certificate.cert))
    return certificate


@pytest.fixture
def with_users(tmp_path, certificate) -> Iterator[Etcd]:
    """An etcd with TLS and users."""
    etcd = Etcd(tmp_path / "data", certificate)
    ask = opened(etcd.url).gateway.ask
    for name, password in USERS.items():
        ask("/v3/auth/user/add", {"name": name, "password": password})
    ask("/v3/auth/role/add", {"name": "nodes"})
    below = {"permType": "READWRITE", "key": "L3JlcHV0Lw==", "range_end": "L3JlcHV0MA=="}
    ask("/v3/auth/role/grant", {"name": "nodes", "perm": below})
    ask("/v3/auth/role/add", {"name": "root"})
    ask("/v3/auth/user/grant", {"user": "root", "role": "root"})
    ask("/v3/auth/user/grant", {"user": "orders", "role": "nodes"})
    ask("/v3/auth/enable", {})
    yield etcd
    etcd.launched.kill()


@pytest.mark.processes
@needs_etcd
def test_a_lease_in_an_etcd_with_users(with_users, environment):
    """A token that has ended is replaced; a wrong user or password is named."""
    environment.setenv("ETCDCTL_USER", "orders:open:it")
    agreement = opened(with_users.url)
    grant = agreement.take(agreement.read(), STATE)
    assert grant is not None
    assert agreement.change(grant, STATE) == STATE
    agreement.gateway.token = "ended.7"
    assert agreement.renew(grant) > 0
    agreement.gateway.token = "ended.7"
    assert agreement.change(grant, STATE) == STATE
    agreement.give_back(grant)

    environment.setenv("ETCDCTL_USER", "orders")
    environment.setenv("ETCDCTL_PASSWORD", "wrong")
    with pytest.raises(BrokerError, match="refuses a user: user=orders") as caught:
        opened(with_users.url).read()
    assert "ETCDCTL_USER" in caught.value.advice
    environment.setenv("ETCDCTL_USER", "guest:guest")
    with pytest.raises(BrokerError, match="permission denied"):
        opened(with_users.url).read()
    for name in ("USER", "PASSWORD"):
        environment.delenv(f"ETCDCTL_{name}")
    with pytest.raises(BrokerError, match="user name is empty") as caught:
        opened(with_users.url).read()
    assert "ETCDCTL_USER" in caught.value.advice


@pytest.mark.processes
@needs_etcd
def test_an_etcd_that_asks_for_certificates(tmp_path, certificate, environment):
    """The node shows its own; one that is of no known authority is asked nothing, nor is a plain connection made."""
    etcd = Etcd(tmp_path / "data", certificate, asks=True)
    with pytest.raises(BrokerError, match="etcd does not answer"):
        opened(etcd.url).read()
    environment.setenv("ETCDCTL_CERT", str(certificate.cert))
    environment.setenv("ETCDCTL_KEY", str(certificate.key))
    assert opened(etcd.url).read().state is None
    environment.setenv("ETCDCTL_CACERT", str(write_certificate(tmp_path, "other").cert))
    with pytest.raises(BrokerError, match="CERTIFICATE_VERIFY_FAILED"):
        opened(etcd.url).read()
    etcd.launched.kill()


@pytest.mark.parametrize(
    ("given", "encrypts", "said"),
    [
        ({"ETCDCTL_USER": "orders"}, False, "a name and a password"),
        ({"ETCDCTL_PASSWORD": "sesame"}, True, "a name and a password"),
        ({"ETCDCTL_CACERT": "ca.pem"}, False, "no effect without TLS"),
        ({"ETCDCTL_CERT": "node.pem"}, False, "no effect without TLS"),
        ({"ETCDCTL_CACERT": "/none/ca.pem"}, True, "cannot be read"),
        ({"ETCDCTL_CERT": "/none/node.pem"}, True, "cannot be read"),
    ],
)
def test_variables_that_contradict_each_other_are_refused(given, encrypts, said):
    """Before anything is asked, and without the password."""
    with pytest.raises(ConfigError, match=said) as caught:
        access_of_environment(given, encrypts=encrypts)
    assert "sesame" not in str(caught.value)


def test_without_variables_requests_name_no_user():
    """And are plain."""
    assert access_of_environment({}, encrypts=False) == PLAIN
    assert access_of_environment({"ETCDCTL_USER": "a:b:c"}, encrypts=False).password == "b:c"
