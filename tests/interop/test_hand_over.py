"""One store alternately under reput and RocketMQ: each reads everything that the other wrote, and continues it."""

from __future__ import annotations

import random

import pytest

import reput
from interop.file_sizes import FILE_SIZES
from interop.java_program import OLDER_VERSIONS, VERSIONS
from interop.ledger import (
    Ledger,
    assert_read_by_reput,
    assert_read_by_rocketmq,
    put_by_reput,
    put_by_rocketmq,
    random_messages,
)
from interop.reput_writer import ReputWriter
from reput.settings import Settings

pytestmark = [pytest.mark.java, pytest.mark.processes, pytest.mark.slow]

ROUNDS = 3
STEPS = 8
COUNT = 40
IPV6 = {"store_host": "[::1]:10911", "born_host": "[2001:db8::17]:40001"}
# If each queue has one file, version 4 also finds messages by time.
ONE_QUEUE_FILE = {**FILE_SIZES, **IPV6, "mapped_file_size_consume_queue": 20_000}


def epoch_starts(store: reput.Store) -> list[int]:
    """Return the begins of the log's epochs."""
    return [epoch.start_offset for epoch in store._engine.writer.epochs.history]


@pytest.mark.parametrize(
    ("version", "options"),
    [
        *[pytest.param(version, FILE_SIZES, id=f"{version}-small-files") for version in VERSIONS],
        *[pytest.param(version, ONE_QUEUE_FILE, id=f"{version}-one-queue-file-ipv6") for version in OLDER_VERSIONS],
    ],
    indirect=["version"],
)
def test_clean_closes_hand_the_store_over(tmp_path, rocketmq, version, options):
    """Closed by one, opened by the other, three times: nothing is missing; each epoch begins where RocketMQ wrote."""
    settings = Settings(**options)
    by_time = options is ONE_QUEUE_FILE or version.startswith("5")
    rng = random.Random(4)
    ledger = Ledger(settings)
    directory = tmp_path / "store"
    expected_starts = [0]
    for _ in range(ROUNDS):
        with reput.open(directory, mode="inline", **options) as store:
            assert epoch_starts(store) == expected_starts
            put_by_reput(store, ledger, random_messages(rng, COUNT))
            assert_read_by_reput(store, ledger)
        assert not (directory / "abort").exists()
        expected_starts.append(ledger.end)
        opened = rocketmq(directory, settings)
        assert_read_by_rocketmq(opened, ledger, by_time=by_time)
        put_by_rocketmq(opened, ledger, random_messages(rng, COUNT))
        assert_read_by_rocketmq(opened, ledger, by_time=by_time)
        opened.shutdown()
    with reput.open(directory, mode="inline", **options) as store:
        assert epoch_starts(store) == expected_starts
        assert_read_by_reput(store, ledger)


@pytest.mark.parametrize("mode", [pytest.param("inline", marks=pytest.mark.long), "processes"])
def test_kills_hand_the_store_over(tmp_path, rocketmq, mode):
    """Both are killed, three times: every acknowledged message exists, in its queue and under its keys."""
    options = {**FILE_SIZES, "mode": mode}
    settings = Settings(**FILE_SIZES)
    rng = random.Random(9)
    ledger = Ledger(settings)
    directory = tmp_path / "store"
    for _ in range(ROUNDS):
        with ReputWriter(directory, options) as writer:
            messages = random_messages(rng, COUNT)
            for message, result in zip(messages, writer.put(messages), strict=True):
                ledger.add_put(message, result)
            ours_until = ledger.end
        assert (directory / "abort").exists()
        opened = rocketmq(directory, settings)
        assert_read_by_rocketmq(opened, ledger)
        put_by_rocketmq(opened, ledger, random_messages(rng, COUNT))
        assert_read_by_rocketmq(opened, ledger)
        opened.kill()
        with reput.open(directory, **options) as store:
            assert epoch_starts(store)[-1] <= ours_until
            assert_read_by_reput(store, ledger)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_any_order_of_programs_and_ends_hands_the_store_over(tmp_path, rocketmq_of, seed):
    """reput and all versions of RocketMQ, randomly closed or killed: all read everything, and reput finds every key."""
    settings = Settings(**FILE_SIZES)
    rng = random.Random(seed)
    ledger = Ledger(settings)
    directory = tmp_path / "store"
    last, ended = "reput", "kill"
    rocketmq_has_all_keys = True
    for _ in range(STEPS):
        program = rng.choice([program for program in ("reput", *VERSIONS) if program != last or program == "reput"])
        end = rng.choice(["close", "kill"])
        messages = random_messages(rng, COUNT)
        if program == "reput":
            mode = rng.choice(["inline", "processes"])
            with reput.open(directory, mode=mode, **FILE_SIZES) as store:
                assert_read_by_reput(store, ledger)
                if end == "close":
                    put_by_reput(store, ledger, messages)
            if end == "kill":
                with ReputWriter(directory, {**FILE_SIZES, "mode": mode}) as writer:
                    for message, result in zip(messages, writer.put(messages), strict=True):
                        ledger.add_put(message, result)
            rocketmq_has_all_keys = True
        else:
            directory.mkdir(exist_ok=True)
            opened = rocketmq_of(program, directory, settings)
            # After its own crash RocketMQ drops its last index file, and rebuilds only the end of it.
            rocketmq_has_all_keys = rocketmq_has_all_keys and (ended == "close" or last == "reput")
            assert_read_by_rocketmq(opened, ledger, by_key=rocketmq_has_all_keys)
            put_by_rocketmq(opened, ledger, messages)
            assert_read_by_rocketmq(opened, ledger, by_key=rocketmq_has_all_keys)
            if end == "close":
                opened.shutdown()
            else:
                opened.kill()
        last, ended = program, end
    with reput.open(directory, mode="inline", **FILE_SIZES) as store:
        assert_read_by_reput(store, ledger)
