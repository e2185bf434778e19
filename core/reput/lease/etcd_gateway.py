"""EtcdGateway: requests to etcd over HTTP, in the JSON form that every etcd from 3.4 on answers on its client port.

    POST /v3/kv/txn  {"compare": […], "success": […]}  ──▶  {"header": {"revision": "7"}, "succeeded": true, …}

Keys and values are in base64, 64-bit numbers in quotes, fields with the value 0 are left out. Python's clients of
etcd's gRPC port bring grpcio along, for one lease and two keys.

Source: etcd, Documentation/dev-guide/api_grpc_gateway.md; etcdserver/etcdserverpb/rpc.proto.
"""

from __future__ import annotations

import http.client
from collections.abc import Sequence
from typing import Any

import msgspec

from reput.errors import BrokerError

__all__ = ["EtcdGateway"]

ADVICE = "Check that etcd runs, and that --lease names the addresses where its clients connect."
ANSWER_SIZE_MAX = 1 << 20


class EtcdGateway:
    """Any thread may use it: each request has a connection of its own. They are rare."""

    def __init__(self, addresses: Sequence[tuple[str, int]], timeout: float) -> None:
        """*addresses*: of the members of one etcd; *timeout*: seconds that one of them may take."""
        self.addresses = list(addresses)
        self.timeout = timeout

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
        connection = http.client.HTTPConnection(*address, timeout=self.timeout)
        try:
            connection.request("POST", path, msgspec.json.encode(fields), {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = msgspec.json.decode(response.read(ANSWER_SIZE_MAX), type=dict[str, Any])
        finally:
            connection.close()
        if response.status == http.client.OK:
            return answer
        if response.status >= http.client.INTERNAL_SERVER_ERROR:
            # It has no leader, for example. Another member may be better off.
            raise OSError(f"status={response.status} error={answer.get('error')!r}")
        raise BrokerError(
            f"etcd refuses a request: path={path} status={response.status} error={answer.get('error')!r}", ADVICE
        )
