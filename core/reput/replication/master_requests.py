"""MasterRequests: what a follower asks a master's remoting port, one request at a time, without registering.

    26  settings      segment size, role, names            28  where its log begins and ends
    106 of a name server: the addresses of a broker        21, 43, 45, 201: see `master_configuration`

Source: RocketMQ broker, AdminBrokerProcessor and SlaveSynchronize.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import msgspec

from reput.access.credentials import NO_CREDENTIALS, Credentials
from reput.errors import BrokerError, ConfigError, DamagedStore, FollowError
from reput.remoting.remoting_client import parse_address
from reput.remoting.remoting_command import FRAME_SIZE_MAX, FrameError, RemotingCommand, decode_frame, encode_frame
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from reput.replication.log_history import LogHistory
from reput.settings.java_properties import parse_properties
from reput.settings.settings import SEGMENT_SIZE_MAX, SEGMENT_SIZE_MIN
from reput.store.config.config_json import parse_config
from reput.store.service.wake import Wake

__all__ = ["FIELDS_SIZE_MAX", "MasterDescription", "MasterRequests", "Refused", "find_master", "joined"]

TIMEOUT_S = 3.0
# RocketMQ 4.9 refuses to say where its log ends in the first second of its life: it has no sample of its rates yet.
STARTING_TRIES, STARTING_PAUSE_S = 30, 0.1
ANSWER_SIZE_MAX = 256 << 20
OFFSET_MAX = (1 << 63) - 1
# The HA port is beside that of clients, unless the settings say otherwise.
HA_PORT_DISTANCE = 1
# RocketMQ 4 ignores a configured HA port; its version numbers end there.
HONOURS_HA_PORT = 413
# Record fields besides the body: topic and properties.
FIELDS_SIZE_MAX = 64 << 10
REFUSED_MODES = {
    "enableControllerMode": "controller mode, which has other frames on the HA port",
    "enableDLegerCommitLog": "DLedger, which has no HA port",
    "duplicationEnable": "duplicationEnable, with which the HA service does not run",
}


class Refused(BrokerError):
    """The master has answered, with another code than success."""

    advice = "If it demands accounts, set REPUT_ACCESS_KEY and REPUT_SECRET_KEY to an administrator's."


class MasterDescription(msgspec.Struct, frozen=True):
    """A master as it describes itself.

    Attributes:
        offset_min, offset_end: commit-log offsets of its log's begin and end; both 0 if it has no message yet.
        record_size_max: no record of it is larger.
        epoch: of a reput; None: it is a RocketMQ.
    """

    cluster_name: str
    broker_name: str
    broker_id: int
    role: str
    segment_size: int
    record_size_max: int
    delay_level: str
    ha_port: int
    offset_min: int
    offset_end: int
    epoch: int | None

    def ha_address(self, address: str) -> str:
        """Return where followers connect to the master that answers requests at *address*."""
        return joined(parse_address(address)[0], self.ha_port)


class MasterRequests:
    """Requests to one address, each on a connection of its own: they are rare."""

    def __init__(self, address: str, credentials: Credentials = NO_CREDENTIALS) -> None:
        self.address = address
        self.credentials = credentials
        self.connections: set[socket.socket] = set()
        self.has_ended = False

    def end(self) -> None:
        """End all requests, whose threads get an error; any thread may call. A frozen master would be waited for."""
        self.has_ended = True
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                # Not by TLS, which would wait for the master.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def ask(self, code: int) -> RemotingCommand:
        """Return the answer to a request without fields, whatever its code.

        Raises:
            BrokerError: there is no answer.
        """
        host, port = parse_address(self.address)
        try:
            with self.connected(host, port) as connection:
                request = RemotingCommand(code)
                if self.credentials.sign is not None:
                    self.credentials.sign(request)
                connection.sendall(b"".join(encode_frame(request)))
                with connection.makefile("rb") as stream:
                    size = int.from_bytes(stream.read(4), "big")
                    if not 4 <= size <= ANSWER_SIZE_MAX:
                        raise BrokerError(f"the master ended the connection: address={self.address} code={code}")
                    data = stream.read(size)
                    if len(data) < size:
                        raise BrokerError(f"the master ended the connection: address={self.address} code={code}")
                    return decode_frame(data)
        except (OSError, FrameError) as error:
            reason = str(error) or type(error).__name__
            raise BrokerError(f"the master does not answer: address={self.address} reason={reason!r}") from None

    @contextlib.contextmanager
    def connected(self, host: str, port: int) -> Iterator[socket.socket]:
        """Have a connection, encrypted if that was asked for, inside the block.

        Raises:
            OSError: there is none.
        """
        connection = socket.create_connection((host, port), timeout=TIMEOUT_S)
        try:
            if self.credentials.tls is not None:
                connection = self.credentials.tls.wrap_socket(connection, server_hostname=host)
            self.connections.add(connection)
            if self.has_ended:
                raise ConnectionAbortedError("the store is being closed")
            yield connection
        finally:
            self.connections.discard(connection)
            connection.close()

    def body(self, code: int) -> bytes:
        """Return the body of a successful answer.

        Raises:
            BrokerError: there is none.
        """
        answer = self.ask(code)
        if answer.code != ResponseCode.SUCCESS:
            raise Refused(
                f"the master refuses a request: address={self.address} code={code} response_code={answer.code} "
                f"remark={answer.remark!r}"
            )
        return answer.body_bytes

    def json(self, code: int) -> dict[str, object]:
        """Return the JSON object of a successful answer, in fastjson's dialect.

        Raises:
            BrokerError: there is none.
        """
        body = self.body(code)
        try:
            value = parse_config(body.decode())
        except (DamagedStore, UnicodeDecodeError) as error:
            raise BrokerError(f"the master's answer cannot be read: code={code} reason={error}") from None
        if not isinstance(value, dict):
            raise BrokerError(f"the master's answer is no JSON object: code={code}")
        return value

    def describe(self) -> MasterDescription:
        """Return what the master is, and where its log begins and ends now.

        Raises:
            BrokerError: it does not answer, or has just started.
            FollowError: a log of its kind cannot be followed.
        """
        answer = self.ask(RequestCode.GET_BROKER_CONFIG)
        if answer.code != ResponseCode.SUCCESS:
            # Not `Refused`: a master that is starting shows its settings.
            raise BrokerError(
                f"the master does not show its settings: address={self.address} response_code={answer.code} "
                f"remark={answer.remark!r}",
                Refused.advice,
            )
        try:
            properties = {name: value for name, value, _ in parse_properties(answer.body_bytes)}
        except ConfigError as error:
            raise BrokerError(f"the master's settings cannot be read: address={self.address} reason={error}") from None
        for name, mode in REFUSED_MODES.items():
            if properties.get(name, "false").lower() == "true":
                raise FollowError(
                    f"the master replicates by {mode}: master={self.address} {name}=true",
                    "Follow a broker in the classic mode, master or slave.",
                )
        offset_min, offset_end = self.bounds()
        try:
            port = int(properties.get("listenPort", parse_address(self.address)[1]))
            configured = int(properties.get("haListenPort", 0))
            epoch = properties.get("reputEpoch")
            segment_size = int(properties["mappedFileSizeCommitLog"])
            if not SEGMENT_SIZE_MIN <= segment_size <= SEGMENT_SIZE_MAX or offset_min % segment_size:
                raise ValueError(f"mapped_file_size_commit_log={segment_size} master_begin={offset_min}")
            return MasterDescription(
                cluster_name=properties.get("brokerClusterName", ""),
                broker_name=properties.get("brokerName", ""),
                broker_id=int(properties.get("brokerId", 0)),
                role=properties.get("brokerRole", "ASYNC_MASTER"),
                segment_size=segment_size,
                # No client can send a larger one; and a copy holds a whole record in memory, which it decides on.
                record_size_max=min(int(properties.get("maxMessageSize", 4 << 20)), FRAME_SIZE_MAX) + FIELDS_SIZE_MAX,
                delay_level=properties.get("messageDelayLevel", ""),
                ha_port=configured if configured and answer.version >= HONOURS_HA_PORT else port + HA_PORT_DISTANCE,
                offset_min=offset_min,
                offset_end=offset_end,
                epoch=None if epoch is None else int(epoch),
            )
        except (KeyError, ValueError) as error:
            raise BrokerError(
                f"the master's settings cannot be read: address={self.address} reason={error!r}"
            ) from None

    def describe_when_started(self) -> MasterDescription:
        """As `describe`, of a master that may be starting."""
        pause = Wake()
        for _ in range(STARTING_TRIES):
            try:
                return self.describe()
            except Refused:
                pause.wait(STARTING_PAUSE_S)
        return self.describe()

    def bounds(self) -> tuple[int, int]:
        """Return where the master's log begins and ends now.

        Raises:
            BrokerError: it does not answer, or has just started.
        """
        table = self.json(RequestCode.GET_BROKER_RUNTIME_INFO).get("table")
        if not isinstance(table, dict) or "commitLogMaxOffset" not in table:
            raise BrokerError(f"the master has just started and does not say where its log ends: {self.address}")
        try:
            # An empty log begins at -1.
            begin, end = max(int(table["commitLogMinOffset"]), 0), int(table["commitLogMaxOffset"])
            if not begin <= end <= OFFSET_MAX:
                raise ValueError(f"master_begin={begin} master_end={end}")
            return begin, end
        except (KeyError, ValueError, TypeError, OverflowError) as error:
            raise BrokerError(
                f"the master does not say where its log ends: address={self.address} reason={error!r}"
            ) from None

    def history(self) -> LogHistory:
        """Return the history of a reput's log.

        Raises:
            BrokerError: it does not answer.
        """
        try:
            return msgspec.json.decode(self.body(RequestCode.REPUT_GET_HISTORY), type=LogHistory)
        except msgspec.MsgspecError as error:
            raise BrokerError(f"the master's history cannot be read: address={self.address} reason={error}") from None


def find_master(name_servers: str, broker_name: str, credentials: Credentials = NO_CREDENTIALS) -> str:
    """Return the address of the master of a broker that one of *name_servers*, ``host:port;host:port``, knows.

    Raises:
        BrokerError: none of them answers and knows such a master.
    """
    refusal: BrokerError | None = None
    for name_server in name_servers.replace(",", ";").split(";"):
        try:
            return master_known_to(name_server.strip(), broker_name, credentials)
        except BrokerError as error:
            refusal = error
    assert refusal is not None
    raise refusal


def master_known_to(name_server: str, broker_name: str, credentials: Credentials) -> str:
    """As `find_master`, of one name server."""
    table = MasterRequests(name_server, credentials).json(RequestCode.GET_BROKER_CLUSTER_INFO).get("brokerAddrTable")
    brokers = table if isinstance(table, dict) else {}
    found = brokers.get(broker_name)
    addresses = found.get("brokerAddrs") if isinstance(found, dict) else None
    for broker_id, address in addresses.items() if isinstance(addresses, dict) else ():
        # RocketMQ does not quote the key.
        if str(broker_id) == "0":
            return str(address)
    raise BrokerError(
        f"the name server knows no master of this name: name_server={name_server} broker_name={broker_name} "
        f"known={','.join(sorted(map(str, brokers))) or 'none'}",
        "Name a broker that is registered; `mqadmin clusterList` shows them.",
    )


def joined(host: str, port: int) -> str:
    """Return ``host:port``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
