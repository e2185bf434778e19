"""What a program hands in by mistake is an error that names it, with an advice, and leaves the store as it was."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

import reput
from reput.errors import NotAStore, ReputError, StoreError, StoreReadOnly
from reput.store.files import Files


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Return a store that nothing is put into."""
    with reput.open(tmp_path_factory.mktemp("store") / "store", mode="inline") as store:
        yield store


@pytest.mark.parametrize(
    ("method", "arguments", "text"),
    [
        ("put", (None,), "this is no message: type=NoneType value=None"),
        ("put", ("orders",), "this is no message: type=str value='orders'"),
        ("put", (reput.Message([], b""),), "topic is not text: topic=[]"),
        ("put", (reput.Message("orders", b"", delay_level="1"),), "delay_level='1'"),
        ("put_batch", (None,), "messages are none: type=NoneType"),
        ("put_batch", (reput.Message("orders", b""),), "messages are none: type=Message"),
        ("put_batch", ([reput.Message("orders", b""), 3],), "this is no message: type=int value=3"),
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
        ("query", (None, "k"), "topic is not text: topic=None"),
        ("query", ("orders", 7), "key is not text: key=7"),
        ("query", ("orders", "k", "x"), "count_max is not a whole number: count_max='x'"),
        ("queue_range", (b"orders",), "topic is not text: topic=b'orders'"),
        ("records", ("x",), "commit_log_offset is not a whole number: commit_log_offset='x'"),
        ("records", (-5,), "commit_log_offset is less than 0: commit_log_offset=-5"),
        ("progress", (None,), "dispatcher=None"),
        ("delete_topic", ("a\0b",), "topic has an illegal character: topic='a\\x00b'"),
        ("delete_topic", ("../x",), "topic has an illegal character: topic='../x'"),
    ],
)
def test_a_wrong_argument_is_named_with_its_value(store, method, arguments, text):
    """And what to do stands beside it."""
    with pytest.raises(ReputError) as caught:
        getattr(store, method)(*arguments)
    assert text in str(caught.value)
    assert caught.value.advice
    assert store.appended == 0


@pytest.mark.parametrize("path", [None, 3, b"store"])
def test_a_path_that_is_none_is_named(path):
    """Before anything is made."""
    with pytest.raises(ReputError, match=f"path={path!r}"):
        reput.open(path)


def test_a_number_of_numpys_is_a_number(store):
    """Offsets come out of arrays, too."""
    assert not store.get("orders", np.int64(0), np.int32(0), np.int64(3))


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_is_no_store(tmp_path, read_only):
    """Whatever one wants to do with it."""
    path = tmp_path / "file"
    path.write_bytes(b"")
    with pytest.raises(NotAStore, match=f"this is no directory: store={path}") as caught:
        reput.open(path, read_only=read_only)
    assert "commitlog" in caught.value.advice


@pytest.mark.parametrize("reason", [errno.EROFS, errno.EACCES])
def test_a_store_that_may_not_be_written_is_read_only(tmp_path, monkeypatch, reason):
    """The error says which path, and that it can be read."""
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
    """It is no directory without a log."""
    with reput.open(tmp_path, mode="inline"):
        pass

    def refuse(path: object) -> object:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(StoreError, match="the log may not be read: directory=") as caught:
        reput.open(tmp_path, read_only=True)
    assert "owner" in caught.value.advice


@pytest.mark.parametrize("name", ["dispatchers", "config", "hooks"])
def test_an_argument_of_an_opening_that_is_none_is_named(tmp_path, name):
    """Before anything is made."""
    with pytest.raises(ReputError, match=f"{name}=5"):
        reput.open(tmp_path / "store", mode="inline", **{name: 5})
    assert not (tmp_path / "store").exists()
