"""Work that a thread does while its owner continues."""

from __future__ import annotations

import pytest

from reput.errors import StoreError
from reput.store.service.background_work import BackgroundWork
from reput.store.service.threads import Threads


class NoThreads(Threads):
    """The system starts no threads."""

    def start(self, name, target, end_waits=None):
        raise StoreError("the system cannot start a thread")


def test_work_for_which_there_is_no_thread_is_done_all_the_same():
    """For example at the end of the program; its exception is raised in the owner."""
    done = []
    assert BackgroundWork("reput-trial", lambda: done.append(1), NoThreads()).is_done(0.0)
    assert done == [1]
    with pytest.raises(ZeroDivisionError):
        BackgroundWork("reput-trial", lambda: 1 // 0, NoThreads()).is_done(None)
