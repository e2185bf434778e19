"""A copy whose disk refuses: what is reported to the master, and how it goes on."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from delivering import wait_until
from replication.copies import SMALL_SEGMENT, assert_same_log, following, reaches, stops
from reput.replication import follower
from reput.replication.follower import FollowState
from reput.store.disk.files import Mapping

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(params=["at once", "by the flusher"])
def forced(request, monkeypatch) -> None:
    """Which thread forces what comes."""
    monkeypatch.setattr(follower, "FORCED_AT_ONCE_MAX", 64 << 10 if request.param == "at once" else 0)


@contextmanager
def refused(call: str, number: int) -> Iterator[None]:
    """Let a call of every mapped file fail inside the block."""

    def refuse(mapping: Mapping, *_: object) -> None:
        raise OSError(number, os.strerror(number), str(mapping.path))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Mapping, call, refuse)
        yield


@pytest.mark.usefixtures("forced")
def test_after_a_failed_force_nothing_is_acknowledged_until_the_next_opening(master, log, tmp_path):
    """The kernel forgets a failed write, so a second try proves nothing; the next opening reads what the disk has."""
    copy = tmp_path / "copy"
    whole, master.log = master.log, master.log[: log.offsets[25]]
    with following(master.address, copy) as store:
        reaches(store, log.offsets[25])
        with refused("write_forced", errno.EIO):
            master.log = whole
            master.end_connections()
            assert "could not be forced" in stops(store)
        wait_until(lambda: store._engine.writer.state == "READ_ONLY")
        assert store.durable == log.offsets[25]
        assert max(master.reports) <= log.offsets[25]
    with following(master.address, copy) as store:
        reaches(store, log.end)
    assert_same_log(log.store, copy, 0, log.end, SMALL_SEGMENT)


@pytest.mark.usefixtures("forced")
def test_a_copy_waits_while_its_disk_is_full_and_goes_on_when_there_is_room(master, log, tmp_path):
    """It says so, acknowledges nothing meanwhile, and reads on."""
    copy = tmp_path / "copy"
    whole, master.log = master.log, master.log[: log.offsets[25]]
    with following(master.address, copy) as store:
        reaches(store, log.offsets[25])
        # As far as there is room in the segment.
        held = log.offsets[25] + SMALL_SEGMENT
        with refused("reserve", errno.ENOSPC):
            master.log = whole
            master.end_connections()
            wait_until(lambda: "no room" in str(store.following.reason) or "disk" in str(store.following.reason))
            assert store.following.state in (FollowState.WAITING, FollowState.CONNECTING, FollowState.COPYING)
            assert store.durable < min(held, log.end)
            assert max(master.reports) <= store.durable
            assert len(list(store.records(0))) >= 25
        reaches(store, log.end)
        # The other way to be full: retention finds less room than the settings want.
        store._engine.writer.set_disk_full("the disk is full: planted")
        log.append(b"more")
        master.log = bytes(log.data)
        master.end_connections()
        wait_until(lambda: "planted" in str(store.following.reason))
        store._engine.writer.set_disk_full(None)
        reaches(store, log.end)
    log.save()
    assert_same_log(log.store, copy, 0, log.end, SMALL_SEGMENT)
