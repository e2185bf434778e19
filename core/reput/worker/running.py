"""RunsWorkers: `run`, `arun` and `worker` of everything that has consumers, a store and a client alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reput.consume.pull.topic_reader import Beginning
    from reput.consume.registry.subscription import Filter
    from reput.worker.handlers import Handler
    from reput.worker.worker import Order, Worker, WorkerConsumer, WorkerStatistics

__all__ = ["RunsWorkers"]


class RunsWorkers(ABC):
    """A base of `Store` and `Client`. The worker's own module is imported with the first worker."""

    @abstractmethod
    def _worker_consumer(
        self,
        worker: Worker,
        group: str,
        topics: str | Iterable[str],
        filter: Filter,
        begin: Beginning,
        in_flight_max: int,
        queue_in_flight_max: int,
    ) -> WorkerConsumer:
        """Return the consumer of *worker*, which calls this in a thread while its event loop is free."""

    def run(
        self,
        handler: Handler,
        topics: str | Iterable[str],
        *,
        group: str,
        filter: Filter = None,
        begin: Beginning = "earliest",
        concurrency: int = 1,
        order: Order = "any",
        time_limit: float | None = None,
        max_reconsume_times: int | None = None,
        suspend_time: float = 1.0,
        drain_time: float | None = None,
    ) -> WorkerStatistics:
        """Consume *topics* with *handler* until SIGTERM or Ctrl-C, let the running handlers end, and return counts.

        A message is acknowledged when its handler returns. If the handler raises, the message comes again; after
        *max_reconsume_times* it goes to the dead letters, the topic ``%DLQ%group``. Signals are handled in the main
        thread only; in another thread, use a `worker` and stop it.

        Args:
            handler: a function, which runs in threads, or a coroutine function, which runs in tasks. It gets the
                message as a `reput.Record`; what it returns is ignored.
            topics: as for `consumer`.
            group: as for `consumer`.
            filter: as for `consumer`.
            begin: as for `consumer`.
            concurrency: how many messages are handled at the same time.
            order: "any": a failed message goes back to the store and comes again after 10 s, 30 s, 1 min and so on,
                while others go on. "queue": the messages of a queue are handled one by one, in their order; a failed
                one is tried again in its place after *suspend_time* seconds, and its queue waits. A client then locks
                the queues at their brokers.
            time_limit: seconds for one run of the handler; None: no limit. A coroutine is cancelled, and has failed. A
                function cannot be ended: its message goes back, and its thread is free when it returns. With
                order="queue" a slow function is only reported.
            max_reconsume_times: how often a message comes again before it is a dead letter; None: as the group's
                configuration says (16), with order="queue" without limit.
            suspend_time: seconds before a failed message is tried again, with order="queue".
            drain_time: seconds that running handlers get to end; None: as long as they need.

        Raises:
            ConfigError: *handler* or an option is wrong; see also `consumer`.
            RequestRefused: the group or a topic may not be read.
            StoreError: the store cannot be read, or another thread closed it.
            BrokerError: no broker could be reached at the start.
        """
        return self.worker(
            handler,
            topics,
            group=group,
            filter=filter,
            begin=begin,
            concurrency=concurrency,
            order=order,
            time_limit=time_limit,
            max_reconsume_times=max_reconsume_times,
            suspend_time=suspend_time,
            drain_time=drain_time,
        ).run()

    async def arun(
        self,
        handler: Handler,
        topics: str | Iterable[str],
        *,
        group: str,
        filter: Filter = None,
        begin: Beginning = "earliest",
        concurrency: int = 1,
        order: Order = "any",
        time_limit: float | None = None,
        max_reconsume_times: int | None = None,
        suspend_time: float = 1.0,
        drain_time: float | None = None,
    ) -> WorkerStatistics:
        """Like `run`, for a task: it ends when the task is cancelled, and handles no signals."""
        return await self.worker(
            handler,
            topics,
            group=group,
            filter=filter,
            begin=begin,
            concurrency=concurrency,
            order=order,
            time_limit=time_limit,
            max_reconsume_times=max_reconsume_times,
            suspend_time=suspend_time,
            drain_time=drain_time,
        ).arun()

    def worker(
        self,
        handler: Handler,
        topics: str | Iterable[str],
        *,
        group: str,
        filter: Filter = None,
        begin: Beginning = "earliest",
        concurrency: int = 1,
        order: Order = "any",
        time_limit: float | None = None,
        max_reconsume_times: int | None = None,
        suspend_time: float = 1.0,
        drain_time: float | None = None,
    ) -> Worker:
        """Return a worker, to start with its `run` or `arun` and to end with its `stop`. The arguments are `run`'s."""
        from reput.worker.worker import Worker

        def open_consumer(in_flight_max: int, queue_in_flight_max: int) -> WorkerConsumer:
            return self._worker_consumer(worker, group, topics, filter, begin, in_flight_max, queue_in_flight_max)

        worker = Worker(
            open_consumer,
            handler,
            concurrency=concurrency,
            order=order,
            time_limit=time_limit,
            max_reconsume_times=max_reconsume_times,
            suspend_time=suspend_time,
            drain_time=drain_time,
        )
        return worker
