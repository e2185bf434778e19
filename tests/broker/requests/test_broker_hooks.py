"""Hooks of a broker: they see what clients send and consume, may refuse it, and cost nothing where there are none."""

from __future__ import annotations

import logging
from functools import partial

import pytest

from reput.broker.broker import Broker
from reput.broker.requests.broker_hooks import installed_hooks
from reput.errors import ConfigError
from reput.remoting.request_code import RequestCode as Code
from reput.remoting.response_code import ResponseCode
from reput_hooks import TraceContext, hookimpl, trace_context
from serving import served

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SUSPEND, SUBSCRIPTION = 2, 4


class Seen:
    """Hooks that keep what they see, and refuse one topic and one group."""

    def __init__(self):
        self.sent, self.answered, self.delivered, self.outcomes = [], [], [], []

    @hookimpl
    def reput_before_send(self, context):
        if context.topic == "forbidden":
            raise PermissionError("not this topic")
        if context.topic == "broken":
            raise ValueError("a mistake of the hook")
        context.state["begin"] = len(self.sent)
        self.sent.append(context)

    @hookimpl
    def reput_after_send(self, context, outcome):
        self.answered.append((context, outcome))

    @hookimpl
    def reput_before_consume(self, context):
        if context.group == "forbidden":
            raise PermissionError("not this group")
        self.delivered.append(context)

    @hookimpl
    def reput_after_consume(self, outcome):
        self.outcomes.append(outcome)


def test_a_broker_without_hooks_reads_no_metadata(monkeypatch):
    """That of many installed distributions would delay its start."""
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: pytest.fail("read"))
    assert installed_hooks([]) == []


@pytest.fixture
def seen():
    """Hooks that keep what they see."""
    return Seen()


@pytest.fixture
def broker(tmp_path, seen):
    """A broker with these hooks."""
    with served(tmp_path / "store", make=partial(Broker, hooks=[seen])) as broker:
        yield broker


def test_a_send_is_seen_before_and_after(client, seen):
    """With its properties, its trace context, its sender and what became of it."""
    properties = {"KEYS": "k", "traceparent": TRACE, "tracestate": "vendor=x"}
    answer = client.send_message("T", b"body", properties)
    (context,) = seen.sent
    (message,) = context.messages
    assert (context.topic, context.producer_group, context.queue_id) == ("T", "pg", 0)
    assert context.client_address == f"127.0.0.1:{client.socket.getsockname()[1]}"
    assert (message.properties["KEYS"], message.body_size) == ("k", 4)
    assert message.trace == TraceContext(TRACE[3:35], TRACE[36:52], 1, "vendor=x")
    ((after, outcome),) = seen.answered
    assert after is context
    assert after.state == {"begin": 0}
    assert (outcome.code, outcome.queue_offset, outcome.remark) == (0, 0, "")
    assert outcome.message_ids == (answer.ext_fields["msgId"],)


def test_each_message_of_a_batch_is_seen(client, seen):
    """In one call."""
    from broker.requests.test_send_message import batch

    answer = client.send_message("T", batch(b"a", b"bc"), code=Code.SEND_BATCH_MESSAGE, fields={"batch": "true"})
    assert [message.body_size for message in seen.sent[0].messages] == [1, 2]
    assert ",".join(seen.answered[0][1].message_ids) == answer.ext_fields["msgId"]


def test_a_hook_refuses_a_send(broker, client, seen):
    """With its text; nothing is stored, and the hooks after it see that."""
    answer = client.send_message("forbidden")
    assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "not this topic")
    assert broker.engine.appended == 0
    assert [(outcome.code, outcome.queue_offset) for _, outcome in seen.answered] == [(16, None)]


def test_a_hook_that_fails_refuses_and_is_logged(broker, client, caplog):
    """Code 1."""
    with caplog.at_level(logging.ERROR):
        answer = client.send_message("broken")
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "a mistake of the hook")
    assert "a hook refused a request" in caplog.text


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "a b"])
def test_a_send_that_the_broker_refuses_is_seen_as_well(client, seen, topic):
    """With the broker's code."""
    answer = client.send_message(topic)
    assert [outcome.code for _, outcome in seen.answered] == [answer.code]


def test_messages_are_seen_on_their_way_to_a_consumer(broker, client, seen):
    """At once and after they were waited for; a pull that finds nothing is not."""
    client.send_message("T", b"one", {"traceparent": TRACE})
    broker.wait_until_readable()
    assert client.pull("g", "T").code == ResponseCode.SUCCESS
    assert client.pull("g", "T", 1).code == ResponseCode.PULL_NOT_FOUND
    held = client.begin_pull("g", "T", 1, sysFlag=SUSPEND | SUBSCRIPTION, suspendTimeoutMillis=60_000)
    client.send_message("T", b"two")
    assert client.answer_to(held).code == ResponseCode.SUCCESS
    assert [[record.body for record in context.records] for context in seen.delivered] == [[b"one"], [b"two"]]
    assert trace_context(seen.delivered[0].records[0].properties).trace_id == TRACE[3:35]
    assert (seen.delivered[0].group, seen.delivered[0].topic, seen.delivered[0].queue_id) == ("g", "T", 0)


def test_a_hook_refuses_a_pull(broker, client):
    """The messages stay where they are."""
    client.send_message("T")
    broker.wait_until_readable()
    answer = client.pull("forbidden", "T")
    assert (answer.code, answer.remark, answer.body_bytes) == (ResponseCode.NO_PERMISSION, "not this group", b"")


def test_commits_and_failures_are_seen(broker, client, seen):
    """However they come."""
    client.send_message("T")
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "1"}
    assert client.ask(Code.UPDATE_CONSUMER_OFFSET, fields).code == ResponseCode.SUCCESS
    client.pull("g", "T", sysFlag=1 | SUBSCRIPTION, commitOffset=1)
    back = {"offset": "0", "group": "g", "delayLevel": "0", "originTopic": "T"}
    assert client.ask(Code.CONSUMER_SEND_MSG_BACK, back).code == ResponseCode.SUCCESS
    broker.reaches(lambda: len(seen.outcomes) == 3)
    assert [(one.queue_offset, one.commit_log_offset) for one in seen.outcomes] == [(1, None), (1, None), (None, 0)]
    assert {(one.group, one.topic) for one in seen.outcomes} == {("g", "T")}


def test_a_hook_that_fails_behind_a_request_costs_a_line(tmp_path, caplog):
    """The message is stored, and its sender is told so."""

    class Failing:
        @hookimpl
        def reput_after_send(self, outcome):
            raise RuntimeError("full")

    with (
        caplog.at_level(logging.ERROR),
        served(tmp_path / "store", make=partial(Broker, hooks=[Failing()])) as broker,
        broker.client() as client,
    ):
        assert client.send_message("T").code == ResponseCode.SUCCESS
    assert "a hook failed after its request" in caplog.text


def test_a_broker_without_hooks_has_the_same_processors(tmp_path):
    """Nothing stands between a request and its processor."""
    with served(tmp_path / "store") as broker:
        table = broker.broker.server.processors
        assert table[Code.SEND_MESSAGE_V2].process == broker.broker.sends.send
        assert table[Code.PULL_MESSAGE].process == broker.broker.pulls.pull


def test_hooks_for_sending_leave_pulls_alone(tmp_path):
    """Only what a hook concerns is paid for."""

    class Sends:
        @hookimpl
        def reput_before_send(self, context):
            pass

    with served(tmp_path / "store", make=partial(Broker, hooks=[Sends()])) as broker:
        table = broker.broker.server.processors
        assert table[Code.PULL_MESSAGE].process == broker.broker.pulls.pull
        assert table[Code.SEND_MESSAGE_V2].process != broker.broker.sends.send


class Nameless:
    """No hook at all."""


class WrongArgument:
    @hookimpl
    def reput_before_send(self, context, nothing):
        pass


@pytest.mark.parametrize(("hook", "text"), [(Nameless(), "has no hook"), (WrongArgument(), "does not fit")])
def test_a_hook_that_does_not_fit_is_refused_at_the_start(tmp_path, hook, text):
    """With its name."""
    with pytest.raises(ConfigError, match=text), served(tmp_path / "store", make=partial(Broker, hooks=[hook])):
        pass


def test_hooks_are_named_by_a_setting(tmp_path):
    """One that no distribution has is refused."""
    with pytest.raises(ConfigError, match="broker_hooks=none"), served(tmp_path / "store", broker_hooks="none"):
        pass


@pytest.mark.parametrize(
    ("value", "is_one"),
    [
        (TRACE, True),
        ("cc" + TRACE[2:] + "-more", True),
        ("", False),
        (TRACE.upper(), False),
        (TRACE + "-more", False),
        ("ff" + TRACE[2:], False),
        ("00-" + "0" * 32 + TRACE[35:], False),
        (TRACE[:36] + "0" * 16 + "-01", False),
        (TRACE[:-1], False),
    ],
)
def test_trace_contexts_are_those_of_w3c(value, is_one):
    """Others are none: a message is never refused for them."""
    assert (trace_context({"traceparent": value}) is not None) is is_one
