"""EtcdAgreement: an `Agreement` in two keys of etcd.

    /reput/NAME/state     ClusterState, as JSON
    /reput/NAME/holder    the member that is the master; belongs to its lease

The modification revision of the holder's key is the fence: every change of the state compares it.
"""

from __future__ import annotations

import base64
import math
import os
import re
from typing import Any

import msgspec

from reput.errors import BrokerError, ConfigError
from reput.lease.agreement import Agreed, Agreement, ClusterState, Grant
from reput.lease.etcd_access import access_of_environment
from reput.lease.etcd_gateway import EtcdGateway
from reput.remoting.remoting_client import Unreachable, parse_address

__all__ = ["EtcdAgreement", "open_agreement"]

URL = re.compile(r"etcd(s?)://([^/]+)/([A-Za-z0-9%|_.-]{1,255})")
# A request may take this share of the lease's time: so several fit in.
TIMEOUT_SHARE, TIMEOUT_MAX_S = 1 / 6, 5.0
STATE, HOLDER = "state", "holder"


def open_agreement(url: str, lease_time: float) -> Agreement:
    """Return the agreement that *url* names: ``etcd://HOST:PORT[,HOST:PORT…]/NAME``. Nothing is asked yet.

    ``etcds://`` encrypts. Certificates and the user are named by the environment: see `etcd_access`.

    Args:
        lease_time: seconds that a new lease lasts.

    Raises:
        ConfigError: the text has another form, or the environment contradicts it.
    """
    found = URL.fullmatch(url)
    if found is None:
        raise ConfigError(
            f"a lease has the form etcd://HOST:PORT/NAME: lease={url}",
            "Name etcd's client addresses, separated by commas, and a name that all nodes of the broker share.",
        )
    try:
        addresses = [parse_address(address) for address in found[2].split(",")]
    except Unreachable as error:
        raise ConfigError(f"an address of etcd has the form HOST:PORT: lease={url} reason={error}") from None
    if any(port == 0 for _, port in addresses):
        raise ConfigError(f"an address of etcd has the form HOST:PORT, with a port above 0: lease={url}")
    access = access_of_environment(os.environ, encrypts=bool(found[1]))
    gateway = EtcdGateway(addresses, min(lease_time * TIMEOUT_SHARE, TIMEOUT_MAX_S), access)
    return EtcdAgreement(gateway, found[3], lease_time)


class EtcdAgreement:
    """Errors as of `Agreement`."""

    def __init__(self, gateway: EtcdGateway, name: str, lease_time: float) -> None:
        self.gateway = gateway
        self.name = name
        self.lease_time = lease_time

    def key(self, which: str) -> str:
        """Return a key as requests have it."""
        return encoded(f"/reput/{self.name}/{which}".encode())

    def read(self) -> Agreed:
        """As of `Agreement`: both keys at one revision."""
        answer = self.gateway.ask("/v3/kv/txn", {"success": self.ranges()})
        return self.found(answer)

    def take(self, seen: Agreed, state: ClusterState) -> Grant | None:
        """As of `Agreement`."""
        lease = self.gateway.ask("/v3/lease/grant", {"TTL": str(math.ceil(self.lease_time))})
        grant = Grant(str(lease["ID"]), float(lease["TTL"]), seen.holder_revision, seen.revision)
        holder = {"key": self.key(HOLDER), "value": encoded(state.master.member.encode()), "lease": grant.lease_id}
        answer = self.swap(grant, state, {"request_put": holder})
        if not answer.get("succeeded"):
            self.give_back(grant)
            return None
        grant.holder_revision = grant.revision
        return grant

    def renew(self, grant: Grant) -> float:
        """As of `Agreement`."""
        answer = self.gateway.ask("/v3/lease/keepalive", {"ID": grant.lease_id})
        return float(answer.get("result", {}).get("TTL", 0))

    def change(self, grant: Grant, state: ClusterState) -> ClusterState | None:
        """As of `Agreement`."""
        answer = self.swap(grant, state)
        if answer.get("succeeded"):
            return state
        found = self.found(answer)
        if found.holder_revision != grant.holder_revision:
            return None
        grant.revision = found.revision
        return found.state

    def give_back(self, grant: Grant) -> None:
        """As of `Agreement`."""
        self.gateway.ask("/v3/lease/revoke", {"ID": grant.lease_id})

    def swap(self, grant: Grant, state: ClusterState, *others: dict[str, Any]) -> dict[str, Any]:
        """Set *state* if both keys are as *grant* knows them, and note its revision; return the answer."""
        put = {"request_put": {"key": self.key(STATE), "value": encoded(msgspec.json.encode(state))}}
        compare = [
            {"key": self.key(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}
            for key, revision in ((STATE, grant.revision), (HOLDER, grant.holder_revision))
        ]
        fields = {"compare": compare, "success": [put, *others], "failure": self.ranges()}
        answer = self.gateway.ask("/v3/kv/txn", fields, repeats=False)
        if answer.get("succeeded"):
            grant.revision = int(answer["header"]["revision"])
        return answer

    def ranges(self) -> list[dict[str, Any]]:
        """Return the operations that read both keys."""
        return [{"request_range": {"key": self.key(key)}} for key in (STATE, HOLDER)]

    def found(self, answer: dict[str, Any]) -> Agreed:
        """Return what the answer to `ranges` says.

        Raises:
            BrokerError: another program has written these keys.
        """
        try:
            state, holder = (one["response_range"].get("kvs", [None])[0] for one in answer["responses"])
            return Agreed(
                None if state is None else msgspec.json.decode(base64.b64decode(state["value"]), type=ClusterState),
                0 if state is None else int(state["mod_revision"]),
                None if holder is None else base64.b64decode(holder["value"]).decode(),
                0 if holder is None else int(holder["mod_revision"]),
            )
        except (KeyError, ValueError, msgspec.MsgspecError) as error:
            raise BrokerError(
                f"the keys in etcd are not those of a reput: prefix=/reput/{self.name}/ reason={error!r}",
                "Name another lease.",
            ) from None


def encoded(data: bytes) -> str:
    """Return bytes as etcd's JSON has them."""
    return base64.b64encode(data).decode()
