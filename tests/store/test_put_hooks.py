"""Hooks before and after a put: each message passes through them, with every method of putting."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest

import reput
from reput.errors import ConfigError, MessageIllegal
from reput.store.message_store import MessageStore
from reput_hooks import hookimpl


class Audit:
    """Hooks that record their calls, and refuse one topic."""

    def __init__(self) -> None:
        self.before: list[bytes] = []
        self.after: list[tuple[bytes, int]] = []

    @hookimpl
    def reput_before_put(self, message):
        if message.topic == "secret":
            raise PermissionError("not into this store")
        self.before.append(message.body)

    @hookimpl
    def reput_after_put(self, message, result):
        self.after.append((message.body, result.queue_offset))


class Broken:
    """A hook that fails after a put."""

    @hookimpl
    def reput_after_put(self, result):
        raise RuntimeError("nobody listens")


@pytest.fixture
def audit():
    """Return hooks that record their calls."""
    return Audit()


def open_hooked(path, *hooks):
    """Open a store with *hooks* for its puts."""
    return reput.open(path, mode="inline", dispatchers=[], hooks=list(hooks))


def test_every_put_goes_through_the_hooks(tmp_path, audit):
    """One by one, in a batch, and from an event loop."""
    with open_hooked(tmp_path, audit) as store:
        store.put(reput.Message("orders", b"a"))
        store.put_batch(reput.Message("orders", body) for body in (b"b", b"c"))
        asyncio.run(store.aput(reput.Message("orders", b"d")))
    assert audit.before == [b"a", b"b", b"c", b"d"]
    assert audit.after == [(b"a", 0), (b"b", 1), (b"c", 2), (b"d", 3)]


def test_a_hook_before_a_put_refuses_it(tmp_path, audit):
    """With its own exception; no message of a batch is stored."""
    with open_hooked(tmp_path, audit) as store:
        with pytest.raises(PermissionError):
            store.put(reput.Message("secret", b"a"))
        with pytest.raises(PermissionError):
            store.put_batch([reput.Message("orders", b"a"), reput.Message("secret", b"b")])
        assert store.appended == 0
    assert audit.after == []


def test_a_hook_that_fails_behind_a_put_costs_nothing_but_a_line(tmp_path, audit, caplog):
    """The message is stored, and put returns normally."""
    with open_hooked(tmp_path, audit, Broken()) as store, caplog.at_level(logging.ERROR):
        assert store.put(reput.Message("orders", b"a")).queue_offset == 0
    assert "a hook failed after a put" in caplog.text
    assert "nobody listens" in caplog.text


class Append:
    """A hook that replaces each message except empty ones by one with a longer body."""

    def __init__(self, letter: bytes) -> None:
        self.letter = letter

    @hookimpl
    def reput_before_put(self, message):
        return msgspec.structs.replace(message, body=message.body + self.letter) if message.body else None


def test_a_hook_before_a_put_replaces_the_message(tmp_path, audit):
    """Each hook gets the previous hook's message; the last one is stored, and passed to the hooks after the put."""
    hooks = [audit, Append(b"2"), Append(b"1")]
    with reput.open(
        tmp_path, mode="inline", dispatchers=[], hooks=hooks, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=60_000
    ) as store:
        store.put(reput.Message("orders", b"a"))
        store.put_batch([reput.Message("orders", b""), reput.Message("orders", b"b")])
        asyncio.run(store.aput(reput.Message("orders", b"c")))
        stored = [record.body for record in store.records()]
    assert stored == [b"a12", b"", b"b12", b"c12"]
    assert audit.before == stored
    assert [body for body, _ in audit.after] == stored


@pytest.mark.parametrize(
    ("replacement", "reason"), [(b"bytes", "type=bytes"), (reput.Message("a/../b", b"x"), "topic")]
)
def test_a_replacement_that_is_no_legal_message_is_refused(tmp_path, replacement, reason):
    """As if it had been put; nothing is stored."""

    class Replace:
        @hookimpl
        def reput_before_put(self):
            return replacement

    with open_hooked(tmp_path, Replace()) as store:
        with pytest.raises(MessageIllegal, match=reason):
            store.put(reput.Message("orders", b"a"))
        assert store.appended == 0


def test_a_wrapper_before_a_put_is_refused(tmp_path):
    """There is no single call to wrap: the message goes from hook to hook."""

    class Wrapper:
        @hookimpl(wrapper=True)
        def reput_before_put(self):
            return (yield)

    with pytest.raises(ConfigError, match="wrapper"):
        open_hooked(tmp_path / "store", Wrapper())


@pytest.mark.parametrize("hooks", [object(), Audit, "audit", 3])
def test_what_has_no_hook_is_refused(tmp_path, hooks):
    """Before the store is created."""
    if hooks is Audit:
        # A class has the hooks, but they need an instance.
        hooks = type("Misspelt", (), {"reput_befor_put": hookimpl(lambda self, message: None)})()
    with pytest.raises(ConfigError, match="hooks="):
        open_hooked(tmp_path / "store", hooks)
    assert not (tmp_path / "store").exists()


def test_a_store_without_hooks_knows_of_none(tmp_path):
    """Puts have no cost for unused hooks."""
    with open_hooked(tmp_path) as store:
        assert type(store._engine.writer) is MessageStore
