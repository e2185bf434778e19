"""An agreement in etcd: what a compare-and-swap lets through; and what is said where etcd is not."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from delivering import wait_until
from replication.leases import Etcd, needs_etcd
from reput.errors import BrokerError, ConfigError
from reput.lease.agreement import Agreement, ClusterState, Node
from reput.lease.etcd_agreement import open_agreement

STATE = ClusterState(3, Node("a", "h:1", "h:2"), ("a", "b"), "c", "n")
OF_B = msgspec.structs.replace(STATE, epoch=4, master=Node("b", "h:3", "h:4"))


@pytest.fixture(scope="module")
def etcd(tmp_path_factory) -> Iterator[Etcd]:
    """An etcd for all tests of this module, each with a lease of its own."""
    etcd = Etcd(tmp_path_factory.mktemp("etcd") / "data")
    yield etcd
    etcd.launched.kill()


@pytest.fixture
def agreement(etcd, request) -> Agreement:
    """A lease that no other test has."""
    return open_agreement(etcd.url.replace("orders", request.node.name), 2.0)


@pytest.mark.processes
@needs_etcd
class TestEtcd:
    """Against a real etcd."""

    def test_the_first_node_takes_the_lease_and_all_see_it(self, agreement):
        """With state, holder and revisions."""
        seen = agreement.read()
        assert (seen.state, seen.holder, seen.revision, seen.holder_revision) == (None, None, 0, 0)
        grant = agreement.take(seen, STATE)
        found = agreement.read()
        assert (found.state, found.holder) == (STATE, "a")
        assert (found.revision, found.holder_revision) == (grant.revision, grant.holder_revision)
        assert 0 < agreement.renew(grant) <= grant.ttl

    def test_of_two_nodes_that_saw_the_same_one_becomes_the_master(self, agreement):
        """The other is told that something has changed."""
        seen = agreement.read()
        assert agreement.take(seen, STATE) is not None
        assert agreement.take(seen, OF_B) is None
        assert agreement.read().holder == "a"

    def test_a_lease_that_is_not_renewed_ends_and_the_state_stays(self, agreement):
        """So the next master knows the epoch and the in-sync set."""
        grant = agreement.take(agreement.read(), STATE)
        wait_until(lambda: agreement.read().holder is None)
        assert agreement.read().state == STATE
        assert agreement.renew(grant) == 0
        assert agreement.change(grant, STATE) is None

    def test_a_lease_that_is_given_back_ends_at_once(self, agreement):
        """Another node need not wait."""
        agreement.give_back(agreement.take(agreement.read(), STATE))
        assert agreement.read().holder is None

    def test_a_former_master_changes_nothing(self, agreement):
        """Its fence is the revision at which it became the holder."""
        old = agreement.take(agreement.read(), STATE)
        agreement.give_back(old)
        new = agreement.take(agreement.read(), OF_B)
        assert agreement.change(old, msgspec.structs.replace(STATE, in_sync=("a",))) is None
        assert agreement.read().state == OF_B
        alone = msgspec.structs.replace(OF_B, in_sync=("b",))
        assert agreement.change(new, alone) == alone

    def test_a_change_whose_answer_was_lost_is_found_by_the_next(self, agreement):
        """The master is told what is agreed on, and goes on from there."""
        grant = agreement.take(agreement.read(), STATE)
        before = msgspec.structs.replace(grant)
        alone = msgspec.structs.replace(STATE, in_sync=("a",))
        assert agreement.change(grant, alone) == alone
        assert agreement.change(before, STATE) == alone
        assert agreement.change(before, STATE) == STATE

    def test_keys_of_another_program_are_refused(self, etcd, agreement):
        """A name that something else uses."""
        fields = {"key": agreement.key("state"), "value": "bm90IG91cnM="}
        agreement.gateway.ask("/v3/kv/put", fields)
        with pytest.raises(BrokerError, match="not those of a reput"):
            agreement.read()

    def test_a_member_of_etcd_that_is_away_is_passed_over(self, etcd):
        """The first that answers is asked first from then on."""
        agreement = open_agreement(etcd.url.replace("etcd://", "etcd://127.0.0.1:1,"), 2.0)
        assert agreement.read().holder is None
        assert agreement.gateway.addresses[0] == ("127.0.0.1", etcd.port)


def test_where_no_etcd_is_the_error_names_each_address():
    """With what to look at."""
    with pytest.raises(BrokerError, match=r"127\.0\.0\.1:1 Connection refused") as caught:
        open_agreement("etcd://127.0.0.1:1/orders", 2.0).read()
    assert "etcd runs" in caught.value.advice


@pytest.mark.parametrize(
    "url",
    [
        "orders",
        "etcd://h/orders",
        "etcd://h:1",
        "etcd://h:1/a/b",
        "etcd://h:99999/a",
        "etcd://h:0/a",
        # The system raises another error for a host of this name.
        "etcd://a..b:1/a",
        "zk://h:1/a",
    ],
)
def test_a_lease_that_is_no_url_is_refused(url):
    """Before anything is asked."""
    with pytest.raises(ConfigError, match="HOST:PORT"):
        open_agreement(url, 2.0)
