"""RocketMQ's mqadmin shows and changes the same at `reput serve` as at RocketMQ's own broker.

Each command runs at both, after the same history, and the outputs are compared line by line, without addresses, times
and ids. What is left to differ, and why, stands in `KNOWN`.
"""

from __future__ import annotations

import difflib
import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from delivering import wait_until
from interop.clients.mqadmin import MqAdmin, normalized
from interop.java_program import OLDER_VERSIONS, VERSIONS

pytestmark = [pytest.mark.java, pytest.mark.processes, pytest.mark.slow]

CLUSTER, BROKER = "DefaultCluster", "broker-a"
TOPICS, GROUPS = ("orders", "pays", "ordered"), ("billing", "idle")
Outputs = dict[str, list[str]]
# Where the tool writes exported files, in its own folder.
EXPORTED = "exported"

# Topics that only one of the brokers has, or has under another condition.
OWN_TOPICS = re.compile(
    r"rmq_sys_|TRANS_CHECK_MAX_TIME_TOPIC|RMQ_SYS_TRACE_TOPIC|CHECKPOINT_TOPIC|RMQ_SYS_(ROCKSDB_)?TRANS_|_DUP_"
)


def sorted_lines(lines: list[str]) -> list[str]:
    """The order is that of a Java hash map."""
    return sorted(lines)


def without_own_topics(lines: list[str]) -> list[str]:
    """Each broker has some topics of its own."""
    return sorted(line for line in lines if not OWN_TOPICS.search(line))


def without_topic_as_group(lines: list[str]) -> list[str]:
    """Version 5.3.3 lists a topic's own name among its groups, by mistake."""
    return [line for line in lines if not re.search(r"consumerGroup=orders,|\borders orders\b", line)]


def without_numbers(lines: list[str]) -> list[str]:
    """Figures that depend on time and machine."""
    return [re.sub(r"\b[0-9]+(\.[0-9]+)?\b", "N", line) for line in lines]


def names_only(lines: list[str]) -> list[str]:
    """A broker's settings, or its figures: which of them both have is another test's matter."""
    del lines
    return []


def with_code_of_five(lines: list[str]) -> list[str]:
    """Version 4 answers 1 where version 5 and reput answer 29."""
    return [re.sub(r"CODE: 1$", "CODE: 29", line) for line in lines]


KNOWN: dict[str, Callable[[list[str]], list[str]]] = {
    "topicList": without_own_topics,
    "topicList -c": lambda lines: without_own_topics(without_topic_as_group(lines)),
    "brokerStatus": names_only,
    "getBrokerConfig": names_only,
    "getNamesrvConfig": names_only,
    "clusterList": without_numbers,
    "checkMsgSendRT": without_numbers,
    "wipeWritePerm": without_numbers,
    "addWritePerm": without_numbers,
    "statsAll": lambda lines: without_numbers(without_topic_as_group(lines)),
    "queryMsgByUniqueKey": without_topic_as_group,
    "queryMsgById": without_topic_as_group,
    "queryMsgByOffset": without_topic_as_group,
    "consumerStatus": without_numbers,
    "resetOffsetByTime": sorted_lines,
    "skipAccumulatedMessage": sorted_lines,
    "printMsg": sorted_lines,
    "producer": sorted_lines,
    "updateTopic of the system": with_code_of_five,
    "updateTopic bad name": with_code_of_five,
}


class History:
    """What is done at one broker, and what each command printed."""

    def __init__(self, admin: MqAdmin, version: str, address: str, name_server: str) -> None:
        self.admin = admin
        self.is_five = version.startswith("5")
        self.address = address
        self.name_server = name_server
        self.outputs: Outputs = {}
        self.raw: dict[str, str] = {}

    def run(self, label: str, *arguments: object) -> list[str]:
        """Run one command and keep its output as *label*."""
        self.raw[label] = self.admin.run(*arguments)
        self.outputs[label] = normalized(self.raw[label])
        return self.outputs[label]

    def run_until(self, label: str, reached: Callable[[list[str]], bool], *arguments: object) -> None:
        """Run one command until its output has come to something."""
        pause = threading.Event()
        wait_until(lambda: reached(self.run(label, *arguments)) or pause.wait(0.2))

    def exported(self, name: str) -> dict[str, Any]:
        """Return an exported file."""
        found: dict[str, Any] = json.loads((self.admin.home / EXPORTED / f"{name}.json").read_text("utf-8"))
        return found

    def received(self) -> int:
        """Return how many messages the consumer has got."""
        count: int = self.admin.ask("received", group="billing")["count"]
        return count

    def wait_for_messages(self, count: int) -> None:
        """Return when the consumer has got that many."""
        found: list[int] = []

        def reached() -> bool:
            found[:] = [self.received()]
            return found == [count]

        try:
            wait_until(reached)
        except AssertionError:
            pytest.fail(f"the consumer has not got its messages: received={found[0]} expected={count}")

    def describe(self) -> None:
        """Topics and groups come to be."""
        run, at = self.run, self.address
        run("updateTopic -b", "updateTopic", "-b", at, "-t", "orders", "-r", 4, "-w", 4)
        run("updateTopic -c", "updateTopic", "-c", CLUSTER, "-t", "pays", "-r", 2, "-w", 2, "-p", 6)
        run("updateTopic ordered", "updateTopic", "-c", CLUSTER, "-t", "ordered", "-r", 2, "-w", 2, "-o", "true")
        run("updateTopic of the system", "updateTopic", "-b", at, "-t", "TBW102", "-r", 2, "-w", 2)
        run("updateTopic bad name", "updateTopic", "-b", at, "-t", "bad^name", "-r", 2, "-w", 2)
        run("updateTopicPerm", "updateTopicPerm", "-b", at, "-t", "pays", "-p", 4)
        run("updateOrderConf", "updateOrderConf", "-m", "get", "-t", "ordered")
        run("topicRoute", "topicRoute", "-t", "orders")
        run("topicRoute unknown", "topicRoute", "-t", "nothere")
        run("updateSubGroup -b", "updateSubGroup", "-b", at, "-g", "billing", "-r", 3, "-q", 1)
        run("updateSubGroup -c", "updateSubGroup", "-c", CLUSTER, "-g", "idle")
        if self.is_five:
            run("getConsumerConfig", "getConsumerConfig", "-g", "billing")

    def put_and_consume(self) -> None:
        """A consumer has consumed four messages, and its offsets are known."""
        admin = self.admin
        # Sent first: a group that begins while a queue is empty may begin behind a message that comes at that moment.
        fields = [
            admin.ask("send", group="senders", topic="orders", queueId=number, key=f"k{number}", body=f"body {number}")
            for number in range(4)
        ]
        admin.ask("consume", group="billing", topic="orders")
        self.message = fields[1]
        self.wait_for_messages(4)
        # The queues of orders, and that of the retry topic.
        self.run_until(
            "consumerProgress -g",
            lambda lines: lines[-1].rpartition(" ")[2] == "0" and sum(BROKER in line for line in lines) == 5,
            *("consumerProgress", "-g", "billing"),
        )

    def look(self) -> None:
        """Everything is shown."""
        run, at = self.run, self.address
        run("topicStatus", "topicStatus", "-t", "orders")
        run("topicStatus unknown", "topicStatus", "-t", "nothere")
        run("consumerProgress unknown", "consumerProgress", "-g", "nothere")
        run("consumerProgress", "consumerProgress")
        run("consumerConnection", "consumerConnection", "-g", "billing")
        run("consumerConnection unknown", "consumerConnection", "-g", "nothere")
        run("producerConnection", "producerConnection", "-g", "senders", "-t", "orders")
        run("producerConnection unknown", "producerConnection", "-g", "nothere", "-t", "orders")
        if self.is_five:
            run("producer", "producer", "-b", at)
        run("consumerStatus", "consumerStatus", "-g", "billing")
        run("clusterList", "clusterList")
        run("clusterList -m", "clusterList", "-m")
        run("topicList", "topicList")
        run("topicList -c", "topicList", "-c")
        run("topicClusterList", "topicClusterList", "-t", "orders")
        run("brokerStatus", "brokerStatus", "-b", at)
        run("brokerConsumeStats", "brokerConsumeStats", "-b", at)
        run("getBrokerConfig", "getBrokerConfig", "-b", at)
        run("getNamesrvConfig", "getNamesrvConfig", "-n", self.name_server)
        run("statsAll", "statsAll", "-t", "orders")
        for name in ("exportConfigs", "exportMetadata", "exportMetrics"):
            run(name, name, "-c", CLUSTER, "-f", EXPORTED)
        run("allocateMQ", "allocateMQ", "-t", "orders", "-i", "a,b")

    def find_messages(self) -> None:
        """Messages are looked for in every way."""
        run, at = self.run, self.address
        unique_id, offset_id = self.message["msgId"], self.message["offsetMsgId"]
        run("queryMsgByKey", "queryMsgByKey", "-t", "orders", "-k", "k1")
        run("queryMsgByUniqueKey", "queryMsgByUniqueKey", "-t", "orders", "-i", unique_id)
        run("queryMsgById", "queryMsgById", *(("-t", "orders") if self.is_five else ()), "-i", offset_id)
        run("queryMsgByOffset", "queryMsgByOffset", "-t", "orders", "-b", BROKER, "-i", 1, "-o", 0)
        run("printMsg", "printMsg", "-t", "orders")
        run("printMsgByQueue", "printMsgByQueue", "-t", "orders", "-a", BROKER, "-i", 1, "-p", "true")
        run("queryCq", "queryCq", "-t", "orders", "-q", 1, "-i", 0, "-c", 5, "-b", at)
        run("queryCq -g", "queryCq", "-t", "orders", "-q", 1, "-i", 0, "-c", 5, "-b", at, "-g", "billing")
        run("sendMessage", "sendMessage", "-t", "orders", "-p", "hello", "-b", BROKER, "-i", 0)
        run("checkMsgSendRT", "checkMsgSendRT", "-t", "orders", "-a", 2, "-s", 10)

    def move(self) -> None:
        """The consumer goes back, and gets all messages again."""
        self.run_until("before", lambda lines: lines[-1].endswith(" 0"), "consumerProgress", "-g", "billing")
        del self.outputs["before"]
        before = self.received()
        self.run("resetOffsetByTime", "resetOffsetByTime", "-g", "billing", "-t", "orders", "-s", "0")
        self.wait_for_messages(2 * before)
        self.run("skipAccumulatedMessage", "skipAccumulatedMessage", "-g", "billing", "-t", "orders")
        self.run("cloneGroupOffset", "cloneGroupOffset", "-s", "billing", "-d", "idle", "-t", "orders")

    def administer(self) -> None:
        """Settings, permissions and maintenance."""
        run, at = self.run, self.address
        run("updateBrokerConfig", "updateBrokerConfig", "-b", at, "-k", "fileReservedTime", "-v", 48)
        run("updateKvConfig", "updateKvConfig", "-s", "NS", "-k", "key", "-v", "value")
        run("deleteKvConfig", "deleteKvConfig", "-s", "NS", "-k", "key")
        run("wipeWritePerm", "wipeWritePerm", "-b", BROKER)
        run("topicRoute wiped", "topicRoute", "-t", "orders")
        run("addWritePerm", "addWritePerm", "-b", BROKER)
        run("topicRoute restored", "topicRoute", "-t", "orders")
        run("cleanExpiredCQ", "cleanExpiredCQ", "-b", at)
        run("cleanUnusedTopic", "cleanUnusedTopic", "-b", at)
        if self.is_five:
            run("deleteExpiredCommitLog", "deleteExpiredCommitLog", "-b", at)

    def remove(self) -> None:
        """Groups and topics are deleted."""
        run, at = self.run, self.address
        self.admin.ask("leave", group="billing")
        run("deleteSubGroup -b", "deleteSubGroup", "-b", at, "-g", "billing")
        run("deleteSubGroup -c", "deleteSubGroup", "-c", CLUSTER, "-g", "idle", "-r", "true")
        run("deleteTopic", "deleteTopic", "-c", CLUSTER, "-t", "pays")
        run("deleteTopic with messages", "deleteTopic", "-c", CLUSTER, "-t", "orders")
        run("topicRoute deleted", "topicRoute", "-t", "orders")

    def all(self) -> None:
        """Do everything, in order."""
        self.describe()
        self.put_and_consume()
        self.look()
        self.find_messages()
        self.move()
        self.administer()
        self.remove()


def history(admin: MqAdmin, version: str, address: str, name_server: str) -> History:
    done = History(admin, version, address, name_server)
    done.all()
    return done


def properties_of(output: str) -> dict[str, str]:
    """Return names and values of a listing ``name = value`` or ``name : value``."""
    rows = (re.split(r"\s+[=:]\s+|:\s", line, maxsplit=1) for line in output.splitlines())
    return {row[0].strip(): row[1].strip() for row in rows if len(row) == 2 and " " not in row[0].strip()}


@pytest.fixture(params=[*OLDER_VERSIONS, pytest.param(VERSIONS[-1], marks=pytest.mark.long)])
def version(request: pytest.FixtureRequest) -> str:
    """The versions whose tool runs."""
    return str(request.param)


def test_mqadmin_prints_the_same_at_both_brokers(version, tmp_path, real_broker, reput_broker):
    """Every command that administrators have, of either version of the tool."""
    # Without the timer wheel, version 5.3.3 cannot delete a topic.
    real = real_broker(version, settings={"timerWheelEnable": "true"})
    ours = reput_broker()
    with (
        MqAdmin(version, real.name_server, tmp_path / "at-real") as at_real,
        MqAdmin(version, ours.name_server, tmp_path / "at-ours") as at_ours,
        ThreadPoolExecutor(2) as pool,
    ):
        begun = pool.submit(history, at_real, version, f"127.0.0.1:{real.port}", real.name_server)
        found = history(at_ours, version, f"127.0.0.1:{ours.port}", ours.name_server)
        expected = begun.result()
    differences = [line for label in expected.outputs for line in difference(label, expected, found)]
    assert not differences, "\n".join(differences)
    require_figures(expected, found)
    require_exports(expected, found)


def difference(label: str, expected: History, found: History) -> list[str]:
    """Return how two outputs of one command differ, as lines."""
    normal = KNOWN.get(label, KNOWN.get(label.partition(" ")[0], lambda same: same))
    lines = normal(expected.outputs[label]), normal(found.outputs[label])
    return list(difflib.unified_diff(*lines, f"{label} at RocketMQ", f"{label} at reput", lineterm=""))


def require_figures(expected: History, found: History) -> None:
    """What both brokers say of themselves is different, but has the same names."""
    figures, real_figures = (properties_of(done.raw["brokerStatus"]) for done in (found, expected))
    assert {"putTps", "msgPutTotalTodayNow", "commitLogDiskRatio", "brokerVersionDesc"} <= figures.keys()
    if expected.is_five:
        # The misspelt name is that of version 4, and version 5.5 tells its version by name only.
        assert figures.keys() - real_figures.keys() <= {"getTransferedTps", "brokerVersion"}
    for name in ("msgPutTotalTodayNow", "msgGetTotalTodayNow"):
        assert figures[name] == real_figures[name]
    settings, real_settings = (properties_of(done.raw["getBrokerConfig"]) for done in (found, expected))
    assert settings["brokerName"] == real_settings["brokerName"] == BROKER
    shared = settings.keys() & real_settings.keys()
    assert len(shared) > 40
    names, real_names = (properties_of(done.raw["getNamesrvConfig"]) for done in (found, expected))
    assert names.keys() & real_names.keys()


def require_exports(expected: History, found: History) -> None:
    """Files to move a cluster by have its topics and groups."""
    for name in ("configs", "metrics"):
        assert found.exported(name).keys() == expected.exported(name).keys()
    metadata, real_metadata = found.exported("metadata"), expected.exported("metadata")
    for table, names in (("topicConfigTable", TOPICS), ("subscriptionGroupTable", GROUPS)):
        for name in names:
            row, real_row = metadata[table][name], real_metadata[table][name]
            shared = row.keys() & real_row.keys()
            assert {field: row[field] for field in shared} == {field: real_row[field] for field in shared}
            assert name in row.values()
