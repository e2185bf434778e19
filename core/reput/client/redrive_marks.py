"""ClusterMarks: how far the dead letters of groups were redriven, as the brokers that have them keep it."""

from __future__ import annotations

from reput.client.background_loop import BackgroundLoop
from reput.client.queue_requests import QueueRequests
from reput.client.reading import route_of
from reput.client.session import Session
from reput.consume.administration.dead_letters import REDRIVE_GROUP
from reput.consume.registry.topics import DLQ_PREFIX
from reput.remoting.message_queue import MessageQueue

__all__ = ["ClusterMarks"]


class ClusterMarks:
    """`RedriveMarks` as offsets of `REDRIVE_GROUP`. Any thread may call; the requests run in the loop of *thread*."""

    def __init__(self, thread: BackgroundLoop, session: Session) -> None:
        self.thread = thread
        self.session = session
        self.requests = QueueRequests(session, REDRIVE_GROUP)

    def redriven_to(self, group: str, queue_id: int) -> int | None:
        """Return the queue offset that a redrive begins at; None: there was none."""
        return self.thread.run(self._committed(group, queue_id))

    def note_redriven(self, group: str, queue_id: int, queue_offset: int) -> None:
        """Keep the queue offset that the next redrive begins at.

        Raises:
            RequestRefused, BrokerError: the broker does not keep it.
        """
        self.thread.run(self._commit(group, queue_id, queue_offset))

    async def _committed(self, group: str, queue_id: int) -> int | None:
        queues = await self._queues(group, queue_id)
        return await self.requests.committed(queues[0]) if queues else None

    async def _commit(self, group: str, queue_id: int, queue_offset: int) -> None:
        for queue in await self._queues(group, queue_id):
            await self.requests.commit(queue, queue_offset)

    async def _queues(self, group: str, queue_id: int) -> list[MessageQueue]:
        """Return the queues of the group's dead letters that have this id, of all brokers."""
        route = await route_of(self.session, DLQ_PREFIX + group)
        return [queue for queue in route.readable() if queue.queue_id == queue_id]
