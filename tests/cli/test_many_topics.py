"""File accesses of commands on a store with many topics: once per topic, or only for the requested topic."""

from __future__ import annotations

import builtins
import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import reput
from reput.cli import main

SIZES = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 400, "max_hash_slot_num": 10}
# With few topics, fewer files are read to learn their sizes.
COUNTS = (30, 60, 90)
# Commands that read each topic or each group.
LISTS = (["topic", "list"], ["group", "list"])
ONE_TOPIC = (
    ["status"],
    ["consume", "topic-3", "--group", "g3"],
    ["consume", "topic-3"],
    ["get", "topic-3", "0", "0"],
    ["topic", "describe", "topic-3"],
    ["topic", "create", "invoices"],
    ["group", "describe", "g3"],
    ["group", "reset", "g3", "topic-3", "--to", "earliest"],
)


@pytest.fixture(scope="module")
def stores(tmp_path_factory) -> dict[int, Path]:
    """Stores with this many topics of one message each, and as many groups that have consumed one message."""
    made = {}
    for count in COUNTS:
        path = made[count] = tmp_path_factory.mktemp(f"topics-{count}") / "store"
        with reput.open(path, mode="inline", dispatchers=["consume_queue"], max_index_num=40, **SIZES) as store:
            for number in range(count):
                store.put(reput.Message(f"topic-{number}", b"x"))
            store.put(reput.Message("topic-3", b"late", delay_level=18))
            for number in range(count):
                store._engine.services.managers.offsets.commit_offset(f"g{number}", f"topic-{number}", 0, 0)
    return made


@pytest.fixture
def asked(tmp_path, monkeypatch, stores) -> Callable[[int, list[str]], int]:
    """Return a function that counts a command's opened files and listed directories on a store of that many topics."""
    count = 0

    def counting(call):
        def counted(*arguments, **named):
            nonlocal count
            count += 1
            return call(*arguments, **named)

        return counted

    def ask(topic_count: int, command: list[str]) -> int:
        nonlocal count
        store = tmp_path / f"{topic_count}"
        shutil.copytree(stores[topic_count], store)
        verb = 2 if command[0] in ("topic", "group") else 1
        with monkeypatch.context() as patch:
            for module, name in ((os, "open"), (io, "open"), (builtins, "open"), (os, "scandir"), (os, "listdir")):
                patch.setattr(module, name, counting(getattr(module, name)))
            count = 0
            assert main([*command[:verb], str(store), *command[verb:]]) == 0
            found = count
        shutil.rmtree(store)
        return found

    return ask


@pytest.mark.slow
@pytest.mark.parametrize("command", LISTS, ids=" ".join)
def test_a_list_asks_for_each_topic_once(asked, command, capsys):
    """Twice as many topics take twice as many accesses."""
    asked(COUNTS[0], command)
    few, more, most = (asked(count, command) for count in COUNTS)
    assert most - more <= more - few + 3
    assert most - few <= 4 * (COUNTS[2] - COUNTS[0])


@pytest.mark.slow
@pytest.mark.parametrize("command", ONE_TOPIC, ids=" ".join)
def test_who_asks_for_one_topic_does_not_pay_for_the_others(asked, command, capsys):
    """However many there are."""
    asked(COUNTS[0], command)
    few, more, most = (asked(count, command) for count in COUNTS)
    assert most <= few + 3, (few, more, most)
