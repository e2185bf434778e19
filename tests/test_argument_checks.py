"""Wrong arguments raise an error that names them, with advice, and leave the store unchanged."""

from __future__ import annotations

import asyncio
import errno
import os
import re

import numpy as np
import pytest

import reput
from delivering import LIMIT_S
from reput.errors import ConfigError, NotAStore, ReputError, RequestRefused, StoreError, StoreReadOnly
from reput.store.config.subscription_group_manager import SubscriptionGroupConfig
from reput.store.config.topic_config_manager import TopicConfig
from reput.store.disk.files import Files


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Return a store that tests do not put into."""
    with reput.open(tmp_path_factory.mktemp("store") / "store", mode="inline") as store:
        yield store


@pytest.mark.parametrize(
    ("method", "arguments", "text"),
    [
        ("put", (None,), "this is not a message: type=NoneType value=None"),
        ("put", ("orders",), "this is not a message: type=str value='orders'"),
        ("put", (reput.Message([], b""),), "topic is not text: topic=[]"),
        ("put", (reput.Message("orders", b"", delay_level="1"),), "delay_level='1'"),
        ("put_batch", (None,), "messages are not iterable: type=NoneType"),
        ("put_batch", (reput.Message("orders", b""),), "messages are not iterable: type=Message"),
        ("put_batch", ([reput.Message("orders", b""), 3],), "this is not a message: type=int value=3"),
        ("wait_for", ("x", 0), "dispatcher=x"),
        ("wait_for", ("index", "x"), "commit_log_offset is not a whole number: commit_log_offset='x'"),
        ("wait_for", ("index", 0, "x"), "timeout is not a number of seconds: timeout='x'"),
        ("get", (None,), "topic is not text: topic=None"),
        ("get", ("orders", "0"), "queue_id is not a whole number: queue_id='0'"),
        ("get", ("orders", -1), "queue_id is less than 0: queue_id=-1"),
        ("get", ("orders", 0, 1.5), "queue_offset is not a whole number: queue_offset=1.5"),
        ("get", ("orders", 0, 0, None), "count_max is not a whole number: count_max=None"),
        ("get", ("orders", 0, 0, True), "count_max is not a whole number: count_max=True"),
        ("get", ("../config",), "topic is no name of a directory: topic='../config'"),
        ("get", ("\ud800",), "topic has a lone surrogate: topic='\\ud800'"),
        ("get", ("x" * 5000,), "topic is too long for the name of a directory: topic='xxx"),
        ("queue_range", ("\ud800",), "topic has a lone surrogate"),
        ("wait_for", ("index", 1 << 40, float("nan")), "timeout is not a number of seconds: timeout=nan"),
        ("get", ("..",), "topic is no name of a directory: topic='..'"),
        ("query", (7, "k"), "topic is not text: topic=7"),
        ("query", (None, "k"), "a query without a topic needs a message id: key='k'"),
        ("query", ("orders", 7), "key is not text: key=7"),
        ("query", ("orders", "k", "x"), "count_max is not a whole number: count_max='x'"),
        ("queue_range", (b"orders",), "topic is not text: topic=b'orders'"),
        ("records", ("x",), "commit_log_offset is not a whole number: commit_log_offset='x'"),
        ("records", (-5,), "commit_log_offset is less than 0: commit_log_offset=-5"),
        ("progress", (None,), "dispatcher=None"),
        ("progress", ([],), "dispatcher is not text: dispatcher=[]"),
        ("wait_for", ([], 0), "dispatcher is not text: dispatcher=[]"),
        ("wait_for", ("index", 1 << 70), "commit_log_offset is more than 9223372036854775807: commit_log_offset=11805"),
        ("rebuild", (None,), "view is not text: view=None"),
        ("queue_ids", ([],), "topic is not text: topic=[]"),
        ("next_queue_offset", ([],), "topic is not text: topic=[]"),
        ("next_queue_offset", ("orders", []), "queue_id is not a whole number: queue_id=[]"),
        ("consumer", ([], "orders"), "group has an illegal character: group=[]"),
        ("delete_topic", ("a\0b",), "topic has an illegal character: topic='a\\x00b'"),
        ("delete_topic", ("../x",), "topic has an illegal character: topic='../x'"),
    ],
)
def test_a_wrong_argument_is_named_with_its_value(store, method, arguments, text):
    """The advice says what to do."""
    with pytest.raises(ReputError) as caught:
        getattr(store, method)(*arguments)
    assert text in str(caught.value)
    assert caught.value.advice
    assert store.appended == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([], 0), "dispatcher is not text: dispatcher=[]"),
        (("index", None), "commit_log_offset is not a whole number: commit_log_offset=None"),
        (("index", 1 << 70), "commit_log_offset is more than 9223372036854775807"),
        (("index", 0, "x"), "timeout is not a number of seconds: timeout='x'"),
    ],
)
def test_a_wrong_argument_of_a_task_is_named_with_its_value(store, arguments, text):
    """Like in blocking methods."""
    with pytest.raises(ConfigError) as caught:
        asyncio.run(store.await_for(*arguments))
    assert text in str(caught.value)
    with pytest.raises(ConfigError, match="commit_log_offset is more than 9223372036854775807"):
        asyncio.run(store.await_durable(1 << 70))


@pytest.mark.parametrize("take", ["acknowledge", "retry"])
def test_what_is_no_message_is_not_acknowledged(tmp_path, take):
    """The same holds for acknowledged messages and messages of another consumer; messages in flight stay in flight."""
    with reput.open(tmp_path, mode="inline") as store:
        store.put(reput.Message("orders", b"x"))
        with store.consumer("billing", "orders") as consumer, store.consumer("shipping", "orders") as other:
            record = consumer.receive(LIMIT_S)
            for thing in (None, "x", 3, [], record.commit_log_offset):
                with pytest.raises(ConfigError, match="record is not a received message: record=") as caught:
                    getattr(consumer, take)(thing)
                assert "receive" in caught.value.advice
            with pytest.raises(RequestRefused, match="the message is not in flight here: group='shipping' topic="):
                getattr(other, take)(record)
            getattr(consumer, take)(record)
            with pytest.raises(RequestRefused, match="the message is not in flight here: group='billing' topic="):
                getattr(consumer, take)(record)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda t: t.commit(None), "this is not a half message: half=None"),
        (lambda t: t.rollback("x"), "this is not a half message: half='x'"),
        (lambda t: t.on_check([], None), "producer_group is not text: producer_group=[]"),
        (lambda t: t.put_half("g", reput.Message("orders", b"", keys=3)), "keys=3"),
        (lambda t: t.put_half("g", reput.Message("orders", b"", properties=3)), "type=int"),
        (lambda t: t.put_half("g", reput.Message("orders", b"", properties="x")), "type=str"),
    ],
)
def test_a_wrong_argument_of_a_transaction_is_named_with_its_value(store, call, text):
    """Nothing is stored."""
    with pytest.raises(ReputError) as caught:
        call(store.transactions)
    assert text in str(caught.value)
    assert store.appended == 0


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda a: a.topic_stats([]), "topic is not text: topic=[]"),
        (lambda a: a.delete_topic(None), "topic is not text: topic=None"),
        (lambda a: a.has_messages([]), "topic is not text: topic=[]"),
        (lambda a: a.set_offset("g", b"x", 0, 0), "topic is not text: topic=b'x'"),
        (lambda a: a.set_offset("g", "orders", "0", 0), "queue_id is not a whole number: queue_id='0'"),
        (lambda a: a.set_offset("g", "orders", 0, None), "queue_offset is not a whole number: queue_offset=None"),
        (lambda a: a.group_progress([]), "group is not text: group=[]"),
        (lambda a: a.delete_group([]), "group is not text: group=[]"),
        (lambda a: a.reset_offsets([], "orders", "earliest"), "group is not text: group=[]"),
        (
            lambda a: a.update_topic(TopicConfig(topic_name="orders", read_queue_nums=None)),
            "read_queue_nums is not a whole number: read_queue_nums=None",
        ),
        (
            lambda a: a.update_topic(TopicConfig(topic_name="orders", perm="rw")),
            "perm is not a whole number: perm='rw'",
        ),
        (
            lambda a: a.update_group(SubscriptionGroupConfig(group_name="g", retry_max_times=None)),
            "retry_max_times is not a whole number: retry_max_times=None",
        ),
    ],
)
def test_a_wrong_argument_of_an_operator_is_named_with_its_value(store, call, text):
    """In queries as well as in changes."""
    with pytest.raises(ReputError) as caught:
        call(store._engine.services.administration)
    assert text in str(caught.value)


@pytest.mark.parametrize("path", [None, 3, b"store", "a\0b", "\ud800"])
def test_a_path_that_is_none_is_named(tmp_path, path):
    """Nothing is created."""
    named = re.escape(f"={path!r}")
    with pytest.raises(ReputError, match=f"path{named}"):
        reput.open(path)
    with pytest.raises(ReputError, match=f"path{named}"):
        reput.debug(path, "index")
    if path is None:
        return
    for name in ("config", "target"):
        with pytest.raises(ReputError, match=f"{name}{named}"):
            reput.debug(tmp_path, "index", **{name: path})
    with pytest.raises(ReputError, match=f"config{named}"):
        reput.open(tmp_path / "store", config=path)
    assert list(tmp_path.iterdir()) == []
    with (
        reput.open(tmp_path / "store", mode="inline") as store,
        pytest.raises(ReputError, match=f"offset_store{named}"),
    ):
        store.consumer("group", "orders", broadcast=True, offset_store=path)


def test_a_number_of_numpys_is_a_number(store):
    """Offsets often come from arrays."""
    assert not store.get("orders", np.int64(0), np.int32(0), np.int64(3))


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_is_no_store(tmp_path, read_only):
    """Whatever the operation."""
    path = tmp_path / "file"
    path.write_bytes(b"")
    with pytest.raises(NotAStore, match=f"this is not a directory: store={path}") as caught:
        reput.open(path, read_only=read_only)
    assert "commitlog" in caught.value.advice


@pytest.mark.parametrize("reason", [errno.EROFS, errno.EACCES])
def test_a_store_that_may_not_be_written_is_read_only(tmp_path, monkeypatch, reason):
    """The error names the path, and says that the store can be read."""
    with reput.open(tmp_path, mode="inline") as store:
        store.put(reput.Message("orders", b"x"))

    def refuse(path: object = None, *_: object) -> int:
        raise OSError(reason, os.strerror(reason), str(path))

    monkeypatch.setattr(Files, "make_directory", lambda files, path: refuse(path))
    with pytest.raises(StoreReadOnly, match=f"error=.* path={tmp_path / 'reput'}") as caught:
        reput.open(tmp_path)
    assert "read_only=True" in caught.value.advice
    monkeypatch.undo()
    really_open = os.open
    monkeypatch.setattr(
        os, "open", lambda path, *rest: refuse(path) if str(path).endswith("/lock") else really_open(path, *rest)
    )
    with pytest.raises(StoreReadOnly, match=f"error=.* path={tmp_path / 'lock'}"):
        reput.open(tmp_path)


def test_a_store_that_may_not_be_read_is_said_to_be_so(tmp_path, monkeypatch):
    """The error does not claim that the directory has no log."""
    with reput.open(tmp_path, mode="inline"):
        pass

    def refuse(path: object) -> object:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(StoreError, match="no permission to read the log: directory=") as caught:
        reput.open(tmp_path, read_only=True)
    assert "owner" in caught.value.advice


@pytest.mark.parametrize("name", ["dispatchers", "config", "hooks"])
def test_an_argument_of_an_opening_that_is_none_is_named(tmp_path, name):
    """Nothing is created."""
    with pytest.raises(ReputError, match=f"{name}=5"):
        reput.open(tmp_path / "store", mode="inline", **{name: 5})
    assert not (tmp_path / "store").exists()
