"""RebalanceLocks: at most one client consumes a queue in order, the one that has locked it.

A lock that is not renewed expires.

Source: RocketMQ broker, RebalanceLockManager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from reput.remoting.message_queue import MessageQueue

__all__ = ["RebalanceLocks"]

LOCK_MAX_S = 60.0
# Maximum number of locks of all groups together: clients can name any group and queue.
LOCKS_MAX = 100_000
NAME_SIZE_MAX = 255


class RebalanceLocks:
    """The locks of one broker. Used in the thread of its loop only."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        # By group and queue: the client, and the time of its last lock.
        self.locks: dict[str, dict[MessageQueue, tuple[str, float]]] = {}
        self.count = 0

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Lock the queues that are free, have expired, or are the client's own; return those that it has locked now.

        If too many queues are locked already, no other queue can be locked.
        """
        now = self.monotonic()
        locks = self.locks.get(group, {})
        held = []
        for queue in queues:
            known = locks.get(queue)
            if known is None and self.count >= LOCKS_MAX:
                self.drop_expired()
                locks = self.locks.get(group, {})
                if self.count >= LOCKS_MAX:
                    continue
            if known is None or known[0] == client_id or now - known[1] > LOCK_MAX_S:
                self.count += queue not in locks
                locks[queue] = client_id, now
                held.append(queue)
                self.locks[group] = locks
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release those of *queues* that the client has locked."""
        locks = self.locks.get(group, {})
        for queue in queues:
            if locks.get(queue, ("", 0.0))[0] == client_id:
                del locks[queue]
                self.count -= 1
        if not locks:
            self.locks.pop(group, None)

    def drop_expired(self) -> None:
        """Forget the locks that have expired."""
        before = self.monotonic() - LOCK_MAX_S
        live = {
            group: {queue: lock for queue, lock in locks.items() if lock[1] >= before}
            for group, locks in self.locks.items()
        }
        self.locks = {group: locks for group, locks in live.items() if locks}
        self.count = sum(map(len, self.locks.values()))

    def is_locked(self, group: str) -> bool:
        """Return whether a client of the group has a lock that has not expired."""
        now = self.monotonic()
        return any(now - locked_at <= LOCK_MAX_S for _, locked_at in self.locks.get(group, {}).values())
