"""Puts: puts messages through a client, under the name of one producer group; what `Client` and `Producer` share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from reput.argument_checks import require_messages
from reput.client.background_loop import ThreadOutcome
from reput.client.sending import Outcome, Sending, prepare
from reput.client.sessions import Sessions
from reput.errors import MessageIllegal
from reput.store.record.message import Message, PutMessageResult

__all__ = ["Puts"]


class Puts:
    """Puts messages. Any thread and any task may call."""

    def __init__(self, sessions: Sessions, group: str) -> None:
        self._sessions = sessions
        self._group = group

    def put(self, message: Message) -> PutMessageResult:
        """Store one message at a broker, and return where it was stored.

        If a broker cannot be reached, the put is repeated until the client's *timeout* is over. If only the answer was
        lost, the message is then stored twice.

        Brokers other than reput's do not report ``record_size``, ``next_commit_log_offset`` and ``store_timestamp``;
        in the result these are then -1.

        Raises:
            MessageIllegal: the message breaks one of RocketMQ's limits.
            RequestRefused: the broker refuses it; `response_code` says why.
            BrokerError: no broker can be reached.
            StoreClosed: the client was closed.
        """
        outcome = ThreadOutcome()
        sending = self._prepared(message, outcome)
        background = self._sessions.background()
        sender = background.sender
        background.thread.call(lambda: sender.put(sending))
        result: PutMessageResult = outcome.wait()
        return result

    async def aput(self, message: Message) -> PutMessageResult:
        """Like `put`, for a task. The messages that tasks put in one turn of the event loop are sent together."""
        here = self._sessions.here()
        future: asyncio.Future[PutMessageResult] = here.loop.create_future()
        here.sender.put(self._prepared(message, future))
        return await future

    def put_batch(self, messages: Iterable[Message]) -> list[PutMessageResult]:
        """Store *messages*, and return a result for each. Messages of one topic are sent together.

        All messages are checked before the first is sent. Messages without a queue id go to one queue of their topic,
        in batches of some hundred KiB. If some messages cannot be stored, the first error is raised, and its
        ``stored_count`` is the number of stored messages. The errors are those of `put`.
        """
        outcomes: list[ThreadOutcome] = []
        sendings: list[Sending] = []
        for message in as_list(messages):
            outcomes.append(ThreadOutcome())
            sendings.append(self._prepared(message, outcomes[-1]))
        background = self._sessions.background()
        sender = background.sender

        def put() -> None:
            for sending in sendings:
                sender.put(sending)

        background.thread.call(put)
        results: list[PutMessageResult] = []
        errors: list[BaseException] = []
        for outcome in outcomes:
            try:
                results.append(outcome.wait())
            except Exception as error:
                errors.append(error)
        return all_or_first_error(results, errors)

    async def aput_batch(self, messages: Iterable[Message]) -> list[PutMessageResult]:
        """Like `put_batch`, for a task. A cancelled batch may nevertheless be stored."""
        here = self._sessions.here()
        loop, sender = here.loop, here.sender
        futures: list[asyncio.Future[PutMessageResult]] = []
        sendings: list[Sending] = []
        for message in as_list(messages):
            futures.append(loop.create_future())
            sendings.append(self._prepared(message, futures[-1]))
        for sending in sendings:
            sender.put(sending)
        if futures:
            await asyncio.wait(futures)
        errors = [error for future in futures if (error := future.exception()) is not None]
        return all_or_first_error([future.result() for future in futures if future.exception() is None], errors)

    def _prepared(self, message: Message, outcome: Outcome) -> Sending:
        """Return a message in the form in which it is sent."""
        try:
            return prepare(message, self._group, outcome, self._sessions.born_host)
        except (AttributeError, TypeError):
            # Types are checked only after a failure, so that a successful put does not pay for the check.
            require_messages([message])
            raise


def as_list(messages: Iterable[Message]) -> list[Message]:
    """Return the messages of a batch.

    Raises:
        MessageIllegal: they are not iterable.
    """
    if not isinstance(messages, Iterable):
        raise MessageIllegal(
            f"messages are not iterable: type={type(messages).__name__}", "Give a list of reput.Message."
        )
    return list(messages)


def all_or_first_error(results: list[PutMessageResult], errors: list[BaseException]) -> list[PutMessageResult]:
    """Return the results of a batch, or raise the first of *errors*."""
    if not errors:
        return results
    error = errors[0]
    error.stored_count = len(results)  # type: ignore[attr-defined]
    raise error
