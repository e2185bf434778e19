"""Verbs on HOST:PORT: the same rows, by the way of brokers."""

from __future__ import annotations

import pytest

from command_line import run_reput
from delivering import wait_until
from serving import served


@pytest.fixture
def target(tmp_path):
    """A name server's address."""
    with served(tmp_path / "store") as broker:
        yield "{}:{}".format(*broker.address)


def send(target, *arguments, stdin=""):
    """Send, and return the rows of the messages."""
    ended = run_reput("send", target, "orders", *arguments, "--format", "json", stdin=stdin)
    assert ended.code == 0, ended.stderr
    return ended.rows()


def consumed(target, *arguments):
    """Return the bodies that a consume prints."""
    ended = run_reput("consume", target, "orders", *arguments, "--format", "json", "--body", "text")
    return [row["body"] for row in ended.rows()]


def test_lines_are_sent_and_consumed(target):
    """A row per message, with everything that reput's broker tells."""
    rows = send(target, "--tags", "t", "--keys", "k1", stdin="one\ntwo\n")
    assert len(rows) == 2
    assert all(row["record_size"] > 0 and row["store_timestamp"] > 0 for row in rows)
    wait_until(lambda: consumed(target) == ["one", "two"])
    assert consumed(target, "--count", "1") == ["one"]
    assert consumed(target, "--tags", "other") == []
    assert consumed(target, "--sql", "TAGS = 't'") == ["one", "two"]
    ids = [row["message_id"] for row in rows]
    # The index is a view of its own, and may be behind the queues.
    found = ("query", target, "orders", "k1", "--format", "json")
    wait_until(lambda: [row["message_id"] for row in run_reput(*found).rows()] == ids)
    assert run_reput("query", target, "orders", "k2").code == 1


def test_what_was_stored_before_a_line_that_is_refused_is_said(target):
    """Brokers take no message without a body; a store does."""
    ended = run_reput("send", target, "orders", "--queue-id", "0", stdin="one\n\ntwo\n")
    assert ended.code == 2
    assert "the message has no body" in ended.stderr
    assert ended.stdout.startswith(f"1 sent to orders in {target}: queue 0 from 0 to 0, ")


def test_the_advice_of_a_refusal_comes_with_it(target):
    """It says which setting of the broker forbids the filter."""
    send(target, stdin="one\n")
    ended = run_reput("consume", target, "orders", "--group", "billing", "--sql", "price > 2")
    assert ended.code == 2
    assert "Set enable_property_filter." in ended.stderr


@pytest.mark.slow
def test_a_group_goes_on_where_it_was(target):
    """Offsets are committed at the broker, and shown by the group's rows."""
    send(target, "--count", "4", "--size", "1")
    assert len(consumed(target, "--group", "billing", "--count", "3")) == 3
    rows = run_reput("group", "describe", target, "billing", "--format", "json").rows()
    assert sum(row["lag"] for row in rows if row["topic"] == "orders") == 1
    assert len(consumed(target, "--group", "billing")) == 1
    assert run_reput("consume", target, "orders", "--group", "billing").code == 1
    reset = run_reput("group", "reset", target, "billing", "orders", "--to", "earliest", "--format", "json").rows()
    assert sum(row["lag"] for row in reset) == 4
    names = [row["group"] for row in run_reput("group", "list", target, "--format", "json").rows()]
    assert "billing" in names
    assert run_reput("group", "delete", target, "billing").code == 0
    assert run_reput("group", "describe", target, "billing").code == 2


def test_topics_are_made_changed_and_deleted(target):
    """On all brokers."""
    assert run_reput("topic", "create", target, "invoices", "--queues", "3").code == 0
    assert run_reput("topic", "update", target, "invoices", "--perm", "4").code == 0
    (row,) = [
        row for row in run_reput("topic", "list", target, "--format", "json").rows() if row["topic"] == "invoices"
    ]
    assert (row["read_queue_nums"], row["write_queue_nums"], row["perm"]) == (3, 3, 4)
    assert len(run_reput("topic", "describe", target, "invoices", "--format", "json").rows()) == 3
    assert run_reput("topic", "delete", target, "invoices").code == 0
    assert run_reput("topic", "describe", target, "invoices").code == 2


@pytest.mark.slow
def test_groups_are_made_and_changed(target):
    """What is not said stays as it was."""
    assert run_reput("group", "create", target, "audit", "--retry-max-times", "3").code == 0
    assert run_reput("group", "update", target, "audit", "--no-consume").code == 0
    (row,) = [row for row in run_reput("group", "list", target, "--format", "json").rows() if row["group"] == "audit"]
    assert (row["retry_max_times"], row["consume_enable"]) == (3, False)
    assert run_reput("group", "clean", target).code == 2


def test_status_has_a_row_for_each_broker(target):
    """With the figures by which RocketMQ's tools know a broker."""
    (row,) = run_reput("status", target, "--format", "json").rows()
    assert row["broker_name"] == "broker-a"
    assert row["runtime"]["brokerVersionDesc"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("send", "{}", "orders", "--count", "1", "--set", "flush_disk_type=SYNC_FLUSH"), 2),
        (("query", "{}", "orders", "--tags", "t"), 2),
        (("check", "127.0.0.1:1"), 3),
        (("status", "127.0.0.1:1"), 3),
        (("topic", "list", "127.0.0.1:1"), 3),
    ],
)
def test_what_brokers_cannot_do_is_refused(target, arguments, code):
    """The exit code says whether the request is wrong, or nothing answers."""
    assert run_reput(*(argument.format(target) for argument in arguments)).code == code
