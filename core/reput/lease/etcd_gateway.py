"""EtcdGateway: requests to etcd over HTTP, in the JSON form that every etcd from 3.4 on answers on its client port.

    POST /v3/kv/txn  {"compare": […], "success": […]}  ──▶  {"header": {"revision": "7"}, "succeeded": true, …}

Keys and values are in base64, 64-bit numbers in quotes, fields with the value 0 are left out. Python's clients of
etcd's gRPC port bring grpcio along, for one lease and two keys.

A user is known by a token, which ends after some minutes, and when a member of etcd starts again. A request with such a
token has no effect, so it is sent again with a new one. Over HTTP the common name of a certificate is no user, and an
etcd with users refuses a certificate that has one.

Source: etcd, Documentation/dev-guide/api_grpc_gateway.md; etcdserver/etcdserverpb/rpc.proto.
"""

from __future__ import annotations

import http.client
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from reput.errors import BrokerError
from reput.lease.etcd_access import PLAIN, EtcdAccess

__all__ = ["EtcdGateway"]

ADVICE = "Check that etcd runs, and that --lease names the addresses where its clients connect."
ACCOUNT_ADVICE = "Set ETCDCTL_USER and ETCDCTL_PASSWORD to a user who may read and write the keys below /reput/."
ANSWER_SIZE_MAX = 1 << 20
AUTHENTICATE: Final = "/v3/auth/authenticate"
# A token that etcd does not know any more, and one of before a change of users or roles.
STALE_TOKEN = ("invalid auth token", "revision of auth store is old")


class EtcdGateway:
    """Any thread may use it: each request has a connection of its own. They are rare."""

    def __init__(self, addresses: Sequence[tuple[str, int]], timeout: float, access: EtcdAccess = PLAIN) -> None:
        """*addresses*: of the members of one etcd; *timeout*: seconds that one of them may take."""
        self.addresses = list(addresses)
        self.timeout = timeout
        self.access = access
        self.token = ""

    def ask(self, path: str, fields: dict[str, Any], *, repeats: bool = True) -> dict[str, Any]:
        """Return the answer of the first member that gives one.

        Args:
            repeats: a request whose answer was lost may be sent again, to another member.

        Raises:
            BrokerError: there is none; then the request may have had its effect.
        """
        reasons = []
        for address in list(self.addresses):
            try:
                answer = self.ask_one(address, path, fields)
            except ConnectionRefusedError as error:
                # It has not got the request.
                reasons.append(f"{address[0]}:{address[1]} {error.strerror}")
            except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
                reasons.append(f"{address[0]}:{address[1]} {error or type(error).__name__}")
                if not repeats:
                    break
            else:
                if address != self.addresses[0]:
                    self.addresses = [address, *(other for other in self.addresses if other != address)]
                return answer
        raise BrokerError(f"etcd does not answer: path={path} reasons={'; '.join(reasons)!r}", ADVICE)

    def ask_one(self, address: tuple[str, int], path: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of one member.

        Raises:
            BrokerError: it refuses.
            OSError, HTTPException, DecodeError: there is none.
        """
        if self.access.user and not self.token:
            self.authenticate(address)
        status, answer = self.post(address, path, fields)
        error = str(answer.get("error"))
        if status != http.client.OK and self.token and any(text in error for text in STALE_TOKEN):
            self.authenticate(address)
            status, answer = self.post(address, path, fields)
            error = str(answer.get("error"))
        if status == http.client.OK:
            return answer
        if status >= http.client.INTERNAL_SERVER_ERROR:
            # It has no leader, for example. Another member may be better off.
            raise OSError(f"status={status} error={error!r}")
        is_refused = status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN) or "user name is empty" in error
        raise BrokerError(
            f"etcd refuses a request: path={path} status={status} error={error!r}",
            ACCOUNT_ADVICE if is_refused else ADVICE,
        )

    def authenticate(self, address: tuple[str, int]) -> None:
        """Ask one member for a token.

        Raises:
            BrokerError: it does not know the user, or the password is wrong.
            OSError, HTTPException, DecodeError: as of `ask_one`.
        """
        fields = {"name": self.access.user, "password": self.access.password}
        status, answer = self.post(address, AUTHENTICATE, fields)
        if status != http.client.OK:
            raise BrokerError(
                f"etcd refuses a user: user={self.access.user} status={status} error={answer.get('error')!r}",
                ACCOUNT_ADVICE,
            )
        self.token = str(answer["token"])

    def post(self, address: tuple[str, int], path: str, fields: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return the status and the answer of one request."""
        connection = self.access.connection(address, self.timeout)
        headers = {"Content-Type": "application/json"}
        if self.token and path != AUTHENTICATE:
            headers["Authorization"] = self.token
        try:
            connection.request("POST", path, msgspec.json.encode(fields), headers)
            response = connection.getresponse()
            data = response.read(ANSWER_SIZE_MAX)
            if response.status != http.client.OK and not data.startswith(b"{"):
                return response.status, {"error": data.decode("utf-8", "replace").strip()}
            return response.status, msgspec.json.decode(data, type=dict[str, Any])
        finally:
            connection.close()
