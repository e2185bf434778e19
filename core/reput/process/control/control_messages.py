"""The messages between owner, supervisor and clients of the control socket, as JSON lines."""

from __future__ import annotations

from typing import Literal

import msgspec

from reput.errors import ConfigError, DamagedStore, DispatcherError, ReputError
from reput.process.control.configuration import ConfigurationChange
from reput.process.group.group_context import GroupContext
from reput.process.plugin.catalogue import CatalogueEntry
from reput.process.plugin.description import PluginDescription

__all__ = ["MemberInfo", "Notice", "RebuiltView", "Reply", "Request", "Setup"]

Verb = Literal[
    "status",
    "pause",
    "resume",
    "restart",
    "attach",
    "detach",
    "rebuild",
    "drain",
    "hurry",
    "observe",
    "writer_state",
    "configure",
    "clean",
    "cleaned",
    "statistics",
    "counted",
]


class MemberInfo(msgspec.Struct, frozen=True):
    """One dispatcher of the group, and the slot of its cell.

    Attributes:
        description: None: BROKEN, or not known yet.
        shadow_slot: slot of the shadow that rebuilds its view; None: no rebuild is running.
        options: the options it runs with.
    """

    entry: CatalogueEntry
    slot: int
    description: PluginDescription | None
    shadow_slot: int | None = None
    options: dict[str, object] = {}


class Setup(msgspec.Struct, frozen=True):
    """The first line that the owner sends to its supervisor, together with `RingMemory.descriptors`.

    Attributes:
        entries: the enabled dispatchers.
        path: further entries of `sys.path` for the processes that the supervisor starts.
        again: an earlier supervisor died; its values in the cells stay valid.
        lock_timeout: seconds to wait for a former group that still holds the views.
    """

    context: GroupContext
    entries: list[CatalogueEntry]
    path: list[str]
    started: int
    again: bool
    lock_timeout: float


class Request(msgspec.Struct, frozen=True):
    """One request.

    Attributes:
        name: a dispatcher; *names*: several, for verbs that accept several.
        answer: for "cleaned" and "counted": the owner's answer to clients that asked it to clean, or for its
            statistics; on failure *reason* says why.
        id: returned with the reply.
        state, reason: of the writer.
        change: of the configuration.
        force: for "rebuild": include views that lie elsewhere.
    """

    verb: Verb
    name: str = ""
    id: int = 0
    state: str = ""
    reason: str | None = None
    names: tuple[str, ...] = ()
    answer: msgspec.Raw = msgspec.Raw(b"null")
    change: ConfigurationChange = ConfigurationChange()
    force: bool = False


class RebuiltView(msgspec.Struct, frozen=True):
    """One view that was rebuilt and swapped in.

    Attributes:
        records: records dispatched into it; None: unknown, because the log does not begin at offset 0.
        bytes: the size of those records in the log.
        seconds: from the start of the rebuild until the swap.
    """

    view: str
    records: int | None
    bytes: int
    seconds: float


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of a request: a *result* (JSON), or an *error* of a *kind*."""

    id: int
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: str | None = None
    advice: str = ""
    kind: Literal["config", "damaged", "dispatcher"] = "dispatcher"

    def check(self) -> msgspec.Raw:
        """Return the result.

        Raises:
            ConfigError, DamagedStore, DispatcherError: the error that the supervisor reported.
        """
        if self.error is not None:
            kinds: dict[str, type[ReputError]] = {
                "config": ConfigError,
                "damaged": DamagedStore,
                "dispatcher": DispatcherError,
            }
            raise kinds[self.kind](self.error, self.advice)
        return self.result

    @classmethod
    def refusal(cls, request_id: int, error: ReputError) -> Reply:
        """Return the reply that reports *error*."""
        kind: Literal["config", "damaged", "dispatcher"] = "dispatcher"
        if isinstance(error, ConfigError):
            kind = "config"
        elif isinstance(error, DamagedStore):
            kind = "damaged"
        return cls(request_id, error=str(error), advice=error.advice, kind=kind)


class Notice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message from the supervisor to its owner.

    Attributes:
        event: "members": the current members; the first one comes when all are described. "refused": the group does
            not start, *reply* says why. "reply": the answer to a request from the owner. "drained": all dispatchers
            have ended. "reread": a client wants the configuration read again. "clean": a client wants old segments
            removed. "statistics": a client wants to know what was put and consumed.
    """

    event: Literal["members", "refused", "reply", "drained", "reread", "clean", "statistics"]
    members: list[MemberInfo] = []
    reply: Reply | None = None
