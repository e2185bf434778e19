"""The package that authors of dispatchers import. It imports nothing else of reput, and changes slowly."""

from reput_hooks.broker_hooks import (
    ConsumeContext,
    ConsumeOutcome,
    SendContext,
    SendOutcome,
    SentMessage,
    TraceContext,
    reput_after_consume,
    reput_after_send,
    reput_before_consume,
    reput_before_send,
    trace_context,
)
from reput_hooks.cursor import Cursor
from reput_hooks.dispatch import DispatchBatch, DispatchColumns, DispatchRequest
from reput_hooks.dispatcher import (
    API_VERSION,
    CommitLogDispatcher,
    Counter,
    DispatcherContext,
    DispatcherDescription,
    LogReader,
    RebuildNeeded,
    RetryLater,
    hookimpl,
    hookspec,
    reput_create_dispatcher,
    reput_describe_dispatcher,
    reput_read_view,
)
from reput_hooks.durable_file import replace_durably
from reput_hooks.record import Record
from reput_hooks.store_hooks import reput_after_put, reput_before_put

__all__ = [
    "API_VERSION",
    "CommitLogDispatcher",
    "ConsumeContext",
    "ConsumeOutcome",
    "Counter",
    "Cursor",
    "DispatchBatch",
    "DispatchColumns",
    "DispatchRequest",
    "DispatcherContext",
    "DispatcherDescription",
    "LogReader",
    "RebuildNeeded",
    "Record",
    "RetryLater",
    "SendContext",
    "SendOutcome",
    "SentMessage",
    "TraceContext",
    "hookimpl",
    "hookspec",
    "replace_durably",
    "reput_after_consume",
    "reput_after_put",
    "reput_after_send",
    "reput_before_consume",
    "reput_before_put",
    "reput_before_send",
    "reput_create_dispatcher",
    "reput_describe_dispatcher",
    "reput_read_view",
    "trace_context",
]
