"""BrokerHooks: calls the hooks of a broker around its processors. Brokers without hooks do not make one.

request ──▶ before_send ──▶ processor ──▶ response ──▶ after_send ──▶ client
pull ──▶ processor ──▶ records ──▶ before_consume ──▶ client ──▶ commit, send back ──▶ after_consume
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import metadata
from typing import Any, TypeAlias, cast

import pluggy

import reput_hooks.broker_hooks
from reput.broker.requests.sent_message import SendHeader, batch_messages, parse_properties
from reput.errors import ConfigError, ReputError, RequestRefused
from reput.remoting.connection import Connection
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.remoting_server import Processor, refusal
from reput.remoting.request_code import RequestCode as Code
from reput.remoting.response_code import ResponseCode
from reput.store.record.record import decode_record
from reput_hooks import ConsumeContext, ConsumeOutcome, SendContext, SendOutcome, SentMessage, trace_context

__all__ = ["ENTRY_POINT_GROUP", "BrokerHooks", "installed_hooks"]

PROJECT = "reput"
ENTRY_POINT_GROUP = "reput.broker_hooks"
SENDS = (Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE)
PULLS = (Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE)
COMMIT_OFFSET = 1

Process: TypeAlias = Callable[[RemotingCommand, Connection], RemotingCommand | None]

logger = logging.getLogger(__name__)


def installed_hooks(names: Sequence[str]) -> list[object]:
    """Return the hooks of installed distributions, by the names of their entry points.

    Without names, the metadata of the distributions is not read: a broker would start later.

    Raises:
        ConfigError: a hook is not installed, or cannot be imported.
    """
    if not names:
        return []
    known = {point.name: point for point in metadata.entry_points(group=ENTRY_POINT_GROUP)}
    hooks = []
    for name in names:
        if name not in known:
            raise ConfigError(
                f"no distribution has this hook: broker_hooks={name} installed={','.join(sorted(known))}",
                f"Install the distribution that names it under [project.entry-points.{ENTRY_POINT_GROUP!r}].",
            )
        try:
            hooks.append(known[name].load())
        except Exception as error:
            raise ConfigError(f"the hook cannot be imported: broker_hooks={name} error={error!r}") from error
    return hooks


class BrokerHooks:
    """The hooks of one broker. Used in the thread of its loop only."""

    def __init__(self, hooks: Sequence[object]) -> None:
        """*hooks*: modules or objects with functions that `reput_hooks.hookimpl` marks.

        Raises:
            ConfigError: one of *hooks* has no hook, or a hook with a wrong name or argument.
        """
        manager = pluggy.PluginManager(PROJECT)
        manager.add_hookspecs(reput_hooks.broker_hooks)
        for plugin in hooks:
            try:
                manager.register(plugin)
                manager.check_pending()
            except (pluggy.PluginValidationError, ValueError) as error:
                raise ConfigError(f"a hook does not fit: broker_hooks={plugin!r} reason={error}") from None
            if not manager.get_hookcallers(plugin):
                raise ConfigError(
                    f"the plugin has no hook: broker_hooks={plugin!r}",
                    "Mark reput_before_send, reput_after_send, reput_before_consume or reput_after_consume with "
                    "reput_hooks.hookimpl.",
                )
        self.hook: Any = manager.hook

    def around(self, processors: Mapping[int, Processor]) -> Mapping[int, Processor]:
        """Return *processors*; those of sends and of consuming call the hooks."""
        hook = self.hook
        table = dict(processors)
        wrapped: list[tuple[Sequence[int], Callable[..., RemotingCommand | None]]] = []
        if hook.reput_before_send.get_hookimpls() or hook.reput_after_send.get_hookimpls():
            wrapped.append((SENDS, self.send))
        if hook.reput_before_consume.get_hookimpls() or hook.reput_after_consume.get_hookimpls():
            wrapped.append((PULLS, self.pull))
        if hook.reput_after_consume.get_hookimpls():
            wrapped += [((Code.UPDATE_CONSUMER_OFFSET,), self.commit), ((Code.CONSUMER_SEND_MSG_BACK,), self.send_back)]
        for codes, around in wrapped:
            for code in codes:
                processor = table[code]
                table[code] = processor._replace(process=partial(around, processor.process))
        return table

    # Sending.

    def send(self, process: Process, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        """Call the hooks around a send."""
        context = send_context(request, connection)
        tell = partial(self.sent, context)
        try:
            self.ask(self.hook.reput_before_send, context)
            response = process(request, cast("Connection", Tapped(connection, tell)))
        except ReputError as error:
            tell(refusal(error))
            raise
        if response is not None:
            tell(response)
        return response

    def sent(self, context: SendContext, response: RemotingCommand) -> RemotingCommand:
        """Tell the hooks of the answer to a producer."""
        fields = response.ext_fields
        is_stored = "queueOffset" in fields
        outcome = SendOutcome(
            response.code,
            tuple(fields["msgId"].split(",")) if is_stored else (),
            int(fields["queueOffset"]) if is_stored else None,
            response.remark or "",
        )
        self.tell(self.hook.reput_after_send, context=context, outcome=outcome)
        return response

    # Consuming.

    def pull(self, process: Process, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        """Call the hooks before messages go to a consumer, and after an offset was committed with the pull."""
        found = partial(self.found, request, connection)
        response = process(request, cast("Connection", Tapped(connection, found)))
        fields = request.ext_fields
        if int(fields["sysFlag"]) & COMMIT_OFFSET and (response is None or response.code != ResponseCode.SYSTEM_ERROR):
            self.consumed(request, connection)
        return response if response is None else found(response)

    def found(self, request: RemotingCommand, connection: Connection, response: RemotingCommand) -> RemotingCommand:
        """Call the hooks before the records of a response; return it, or a refusal."""
        if response.code != ResponseCode.SUCCESS:
            return response
        data, at, records = response.body_bytes, 0, []
        while at < len(data):
            records.append(decode_record(data, at))
            at += records[-1].record_size
        fields = request.ext_fields
        context = ConsumeContext(
            fields["consumerGroup"], fields["topic"], int(fields["queueId"]), connection.peer, tuple(records)
        )
        try:
            self.ask(self.hook.reput_before_consume, context)
        except RequestRefused as error:
            return refusal(error)
        return response

    def commit(self, process: Process, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        """Call the hooks after a group has committed."""
        response = process(request, connection)
        self.consumed(request, connection)
        return response

    def consumed(self, request: RemotingCommand, connection: Connection) -> None:
        """Tell the hooks which offset a group has committed."""
        fields = request.ext_fields
        self.tell(
            self.hook.reput_after_consume,
            outcome=ConsumeOutcome(
                fields["consumerGroup"],
                fields["topic"],
                int(fields["queueId"]),
                connection.peer,
                int(fields["commitOffset"]),
                None,
            ),
        )

    def send_back(self, process: Process, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        """Call the hooks after a message has failed. Runs in a thread; the hooks run in the loop's."""
        response = process(request, connection)
        fields = request.ext_fields
        outcome = ConsumeOutcome(
            fields["group"], fields.get("originTopic", ""), -1, connection.peer, None, int(fields["offset"])
        )
        connection.loop.call_soon_threadsafe(partial(self.tell, self.hook.reput_after_consume, outcome=outcome))
        return response

    # Calls.

    def ask(self, caller: Any, context: SendContext | ConsumeContext) -> None:
        """Call hooks that may refuse the request.

        Raises:
            RequestRefused: a hook has raised an exception.
        """
        try:
            caller(context=context)
        except RequestRefused:
            raise
        except PermissionError as error:
            raise RequestRefused(ResponseCode.NO_PERMISSION, str(error) or "a hook refuses it") from None
        except Exception as error:
            logger.exception("a hook refused a request: topic=%s", context.topic)
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error) or type(error).__name__) from None

    def tell(self, caller: Any, **arguments: object) -> None:
        """Call hooks that only observe. Their errors are logged."""
        try:
            caller(**arguments)
        except Exception:
            logger.exception("a hook failed after its request had been executed: hook=%s", caller.name)


class Tapped:
    """A connection whose responses pass through a function first."""

    def __init__(self, connection: Connection, through: Callable[[RemotingCommand], RemotingCommand]) -> None:
        self.connection = connection
        self.through = through

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)

    def respond(self, request: RemotingCommand, response: RemotingCommand) -> None:
        """Respond with what the function returns.

        Raises:
            FrameError: the response is larger than any peer accepts.
        """
        self.connection.respond(request, self.through(response))


def send_context(request: RemotingCommand, connection: Connection) -> SendContext:
    """Return what hooks learn about a send.

    Raises:
        RequestRefused: the header or the batch cannot be read.
    """
    header = SendHeader.of(request)
    body = request.body_bytes
    if header.batch or request.code == Code.SEND_BATCH_MESSAGE:
        messages = tuple(
            sent_message(data.decode("utf-8", "replace"), len(part)) for _, part, data in batch_messages(body)
        )
    else:
        messages = (sent_message(header.properties, len(body)),)
    return SendContext(header.topic, header.queue_id, header.producer_group, connection.peer, messages)


def sent_message(properties: str, body_size: int) -> SentMessage:
    """Return one message as hooks see it."""
    found = parse_properties(properties)
    return SentMessage(found, body_size, trace_context(found))
