"""`reput serve` as a process: ready, drained, killed, started again, and what keeps it from starting."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import reput
from delivering import LIMIT_S, wait_until
from reput.remoting.remoting_command import RemotingCommand, decode_frame, encode_frame
from reput.remoting.request_code import RequestCode

pytestmark = pytest.mark.processes

REPUT = Path(sys.executable).with_name("reput")
READY = re.compile(r"ready broker=127\.0\.0\.1:(\d+) name_server=(?:127\.0\.0\.1:(\d+)|none) pid=(\d+) store=(.+)\n")


class Served:
    """A running `reput serve`."""

    def __init__(self, store: Path, *options: str) -> None:
        ports = ("--listen", "127.0.0.1:0", "--name-server-listen", "127.0.0.1:0")
        self.store = store
        self.process = subprocess.Popen(
            [REPUT, "serve", store, *ports, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        found = READY.fullmatch(self.line)
        assert found, self.line + self.process.stderr.read()
        self.port = int(found[1])
        self.name_server_port = found[2] and int(found[2])
        self.pid = int(found[3])

    def broker_pid(self) -> int:
        """Return the broker's process."""
        return json.loads((self.store / "reput" / "broker.json").read_text())["pid"]

    def next_broker(self) -> int:
        """Return the process that takes the place of the broker's, as soon as it has begun."""
        children, former = Path(f"/proc/{self.pid}/task/{self.pid}/children"), str(self.broker_pid())
        found: list[str] = []

        def has_begun() -> bool:
            found[:] = children.read_text().split()
            return bool(found) and found != [former]

        wait_until(has_begun)
        return int(found[0])

    def ask(self, code: int, fields: dict[str, str], body: bytes = b"", *, port: int | None = None) -> RemotingCommand:
        """Return the answer to one request, over a connection of its own."""
        with socket.create_connection(("127.0.0.1", port or self.port), timeout=LIMIT_S) as connection:
            connection.sendall(b"".join(encode_frame(RemotingCommand(code, fields, body, opaque=7))))
            stream = connection.makefile("rb")
            size = int.from_bytes(stream.read(4), "big")
            return decode_frame(stream.read(size))

    def send(self, body: bytes) -> RemotingCommand:
        """Send one message."""
        names = ("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag")
        values = ("producers", "orders", "TBW102", "1", "0", "0")
        fields = dict(zip(names, values, strict=True)) | {"bornTimestamp": "1700000000000", "flag": "0"}
        return self.ask(RequestCode.SEND_MESSAGE, fields, body)

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.end()

    def end(self) -> int:
        """Stop it as a person would, and return its exit code."""
        self.process.terminate()
        self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode


@pytest.fixture
def served(tmp_path):
    """A broker on a new store, with synchronous flush."""
    with Served(tmp_path / "store", "--set", "flush_disk_type=SYNC_FLUSH") as found:
        yield found


@contextlib.contextmanager
def unheard(store: Path, stdout: int) -> Iterator[subprocess.Popen[str]]:
    """Serve *store* with this descriptor as stdout, and wait until clients can connect."""
    ports = ("--listen", "127.0.0.1:0", "--name-server-listen", "127.0.0.1:0")
    process = subprocess.Popen([REPUT, "serve", store, *ports], stdout=stdout, stderr=subprocess.PIPE, text=True)
    try:
        wait_until((store / "reput" / "broker.json").exists)
        yield process
    finally:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Stop it, and return its exit code and what it complained about."""
    process.terminate()
    _, errors = process.communicate(timeout=LIMIT_S)
    return process.returncode, "".join(line for line in errors.splitlines(True) if " INFO " not in line)


def bodies(store: Path) -> list[bytes]:
    """Return the messages of the topic."""
    with reput.open(store, read_only=True) as opened:
        return [record.body for record in opened.records() if record.topic == "orders"]


@pytest.mark.parametrize(
    ("listen", "told"), [("0.0.0.0:0", "127.0.0.1"), ("127.0.0.1:0", "198.51.100.7"), ("0.0.0.0:0", "localhost")]
)
def test_clients_are_told_the_address_that_was_set_wherever_it_listens(tmp_path, listen, told):
    """Behind the published port of a container, or a router, the broker cannot find out its own address."""
    given = ("--listen", listen, "--insecure", "--name-server-listen", "127.0.0.1:0", "--set", f"brokerIP1={told}")
    with subprocess.Popen(
        [REPUT, "serve", tmp_path / "store", *given], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(f"ready broker={told}:")
            # The registration with its own name server has the same address.
            assert process.stderr is not None
            assert f" address={told}:" in process.stderr.readline()
        finally:
            process.terminate()


def test_it_says_when_clients_can_connect_and_ends_cleanly(served):
    """The line names all that a client needs; SIGTERM leaves a store that was closed."""
    assert served.pid == served.process.pid
    assert served.send(b"one").code == 0
    assert served.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}, port=served.name_server_port).code == 0
    assert served.end() == 0
    assert not (served.store / "abort").exists()
    assert not (served.store / "reput" / "broker.json").exists()
    assert bodies(served.store) == [b"one"]


def test_it_serves_and_ends_cleanly_though_its_stdout_is_closed(tmp_path):
    """As in `reput serve STORE | head -0`: the line that says it is ready is lost, and nothing else."""
    reading, writing = os.pipe()
    os.close(reading)
    with unheard(tmp_path / "store", writing) as process:
        os.close(writing)
        assert ended(process) == (0, "")


def test_it_serves_and_ends_cleanly_though_its_stdout_takes_nothing(tmp_path):
    """A pipe that is full and that no program reads keeps neither clients nor SIGTERM waiting."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    for size in (4096, 1):
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writing, bytes(size))
    os.set_blocking(writing, True)
    with unheard(tmp_path / "store", writing) as process:
        assert ended(process) == (0, "")
    os.close(reading)
    os.close(writing)


def test_a_broker_that_is_killed_is_started_again(served):
    """The sockets stay open meanwhile: a client that connects then waits. Nothing acknowledged is lost."""
    acknowledged = []
    for life in range(3):
        broker = served.broker_pid()
        for number in range(5):
            body = b"%d-%d" % (life, number)
            assert served.send(body).code == 0
            acknowledged.append(body)
        os.kill(broker, signal.SIGKILL)
        assert served.send(b"after %d" % life).code == 0
        acknowledged.append(b"after %d" % life)
        wait_until(lambda gone=broker: served.broker_pid() != gone)
    assert served.end() == 0
    assert bodies(served.store) == acknowledged


def test_sighup_does_not_end_a_broker_that_starts(served):
    """It looks for changed configuration once it can, whenever the signal comes."""
    os.kill(served.broker_pid(), signal.SIGKILL)
    following = served.next_broker()
    os.kill(served.pid, signal.SIGHUP)
    os.kill(following, signal.SIGHUP)
    assert served.send(b"one").code == 0
    assert served.broker_pid() == following
    assert served.end() == 0


def test_without_its_keeper_a_broker_drains_and_ends(served):
    """Whoever kills the foreground process leaves nothing behind, and a closed store."""
    broker = served.broker_pid()
    assert served.send(b"one").code == 0
    served.process.kill()
    served.process.communicate()
    wait_until(lambda: not Path(f"/proc/{broker}").exists())
    assert not (served.store / "abort").exists()
    assert bodies(served.store) == [b"one"]


def test_ctrl_c_ends_it_like_sigterm(served):
    """The broker drains; the exit code is 0."""
    served.process.send_signal(signal.SIGINT)
    served.process.communicate(timeout=LIMIT_S)
    assert served.process.returncode == 0
    assert not (served.store / "abort").exists()


def test_local_programs_reach_the_broker_by_the_store(served):
    """Its socket lies in the abstract namespace, under a name that the store tells."""
    place = json.loads((served.store / "reput" / "broker.json").read_text())
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as local:
        local.settimeout(LIMIT_S)
        local.connect("\0" + place["socket"])
        local.sendall(b"".join(encode_frame(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO, {}, opaque=1))))
        stream = local.makefile("rb")
        answer = decode_frame(stream.read(int.from_bytes(stream.read(4), "big")))
    assert json.loads(answer.body_bytes)["brokerAddrTable"]["reput"]["brokerAddrs"] == {"0": f"127.0.0.1:{served.port}"}


def test_registers_with_a_name_server_elsewhere_and_leaves_it(served, tmp_path):
    """Routes of both brokers are there while both run."""
    name_server = f"127.0.0.1:{served.name_server_port}"

    def brokers() -> set[str]:
        answer = served.ask(RequestCode.GET_BROKER_CLUSTER_INFO, {}, port=served.name_server_port)
        return set(json.loads(answer.body_bytes)["brokerAddrTable"])

    def is_routed() -> bool:
        return (
            served.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}, port=served.name_server_port).code == 0
        )

    with Served(tmp_path / "other", "--name-server", name_server, "--set", "brokerName=other") as other:
        assert brokers() == {"reput", "other"}
        assert other.send(b"to the other").code == 0
        wait_until(is_routed)
        assert other.end() == 0
    assert brokers() == {"reput"}


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (["--listen", "0.0.0.0:0"], 2, "--listen=0.0.0.0:0"),
        (["--listen", "nowhere"], 2, "--listen=nowhere"),
        (["--name-server", "host:port"], 2, "--name-server=host:port"),
        (["--listen", "192.0.2.1:0", "--insecure"], 3, "--listen=192.0.2.1:0"),
        (["--set", "brokerIP1=192.0.2.1", "--insecure"], 3, "Listen on one that it has"),
        (["--set", "flushDiskType=SOMETIMES"], 2, "flushDiskType=SOMETIMES"),
    ],
)
def test_what_keeps_it_from_starting_is_one_sentence(tmp_path, options, code, sentence):
    """With the exit code of every verb, and no traceback."""
    done = subprocess.run([REPUT, "serve", tmp_path / "store", *options], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_store_that_another_process_writes_is_refused(tmp_path):
    """The sentence names the process."""
    with reput.open(tmp_path / "store", mode="inline"):
        done = subprocess.run(
            [REPUT, "serve", tmp_path / "store", "--listen", "127.0.0.1:0", "--name-server", "none"],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 3
    assert str(os.getpid()) in done.stderr


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("brokerName=../x", "broker_name='../x'"),
        ("brokerName=", "broker_name=''"),
        ("brokerClusterName=a b", "broker_cluster_name='a b'"),
    ],
)
def test_a_name_that_no_name_server_takes_is_refused_at_the_start(tmp_path, setting, told):
    """With one sentence that names it."""
    done = subprocess.run(
        [REPUT, "serve", tmp_path / "store", "--listen", "127.0.0.1:0", "--name-server", "none", "--set", setting],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    name = {"brokerName": "broker_name", "brokerClusterName": "broker_cluster_name"}[setting.partition("=")[0]]
    assert (
        f"a broker's name has 1 to 255 letters, digits and %|_.-: {name}={setting.partition('=')[2]!r}" in done.stderr
    )
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_named(tmp_path):
    """Before anything is opened."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run(
            [REPUT, "serve", tmp_path / "store", "--listen", address], capture_output=True, text=True, check=False
        )
    assert done.returncode == 3
    assert address in done.stderr
    assert not (tmp_path / "store").exists()
