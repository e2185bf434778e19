"""What owner, supervisor and clients of the control socket say to each other, as JSON lines."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from reput.errors import ConfigError, DispatcherError, ReputError
from reput.process.control.configuration import ConfigurationChange
from reput.process.control.dispatcher_row import DispatcherRow
from reput.process.group.group_context import GroupContext
from reput.process.plugin.catalogue import CatalogueEntry
from reput.process.plugin.description import PluginDescription
from reput.store.recovery.found_damage import DamageRow

__all__ = ["GroupStatus", "MemberInfo", "Notice", "RebuiltView", "Reply", "Request", "Setup", "WriterRow"]

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
        shadow_slot: of whoever builds its view anew beside it; None: nobody does.
        options: that it runs with.
    """

    entry: CatalogueEntry
    slot: int
    description: PluginDescription | None
    shadow_slot: int | None = None
    options: dict[str, object] = {}


class Setup(msgspec.Struct, frozen=True):
    """The first line that the owner says to its supervisor.

    Attributes:
        entries: the enabled dispatchers.
        descriptors: of the ring's memory, inherited, as `RingMemory.descriptors`.
        path: further entries of `sys.path` for processes that are to be started.
        again: an earlier supervisor died; what it said in the cells goes on.
        lock_timeout: seconds to wait for a former group that still holds the views.
    """

    context: GroupContext
    entries: list[CatalogueEntry]
    descriptors: list[int]
    owner_pid: int
    path: list[str]
    started: int
    again: bool
    lock_timeout: float


class Request(msgspec.Struct, frozen=True):
    """Something that is to be done.

    Attributes:
        name: of a dispatcher; *names* of several, where several can be meant.
        answer: of "cleaned" and "counted": what the owner says to those who asked it to clean, or for its statistics;
            or *reason*: why it did not.
        id: comes back with the reply.
        state, reason: of the writer.
        change: of the configuration.
        force: of "rebuild": views that lie elsewhere, too.
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
        records: that it was given; None: the log begins late, and nobody has counted them.
        bytes: of the log that they take.
        seconds: from the beginning until it was swapped in.
    """

    view: str
    records: int | None
    bytes: int
    seconds: float


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of a request: a *result* (JSON), or an *error* of a *kind*."""

    id: int
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: str | None = None
    advice: str = ""
    kind: Literal["config", "dispatcher"] = "dispatcher"

    def check(self) -> msgspec.Raw:
        """Return the result.

        Raises:
            ConfigError, DispatcherError: as the supervisor said.
        """
        if self.error is not None:
            raise (ConfigError if self.kind == "config" else DispatcherError)(self.error, self.advice)
        return self.result

    @classmethod
    def refusal(cls, request_id: int, error: ReputError) -> Reply:
        """Return the reply that says *error*."""
        kind: Literal["config", "dispatcher"] = "config" if isinstance(error, ConfigError) else "dispatcher"
        return cls(request_id, error=str(error), advice=error.advice, kind=kind)


class Notice(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the supervisor says to its owner.

    Attributes:
        event: "members": who is in the group now; at the first time all are described. "refused": the group does
            not start, *reply* says why. "reply": to a request of the owner's. "drained": all dispatchers have ended.
            "reread": somebody wants the configuration read again. "clean": somebody wants old segments removed.
            "statistics": somebody wants to know what was put and consumed.
    """

    event: Literal["members", "refused", "reply", "drained", "reread", "clean", "statistics"]
    members: list[MemberInfo] = []
    reply: Reply | None = None


class WriterRow(msgspec.Struct, frozen=True):
    """The writer, as `reput status` shows it."""

    pid: int | None
    appended: int | None
    durable: int | None
    commit_log_offset_min: int | None
    epoch: int | None
    state: str
    reason: str | None


class GroupStatus(msgspec.Struct, frozen=True):
    """The whole group.

    Attributes:
        store_id: None: reput never wrote the store, so it has none.
        started: when the owner opened the store, ms since 1970; None: nobody has it open.
        waiting_delays: messages that wait for their time, by delay level; None: not known.
        half_messages: of transactions that are open; None: not known.
        statistics: as `StoreStatistics` of `reput.consume`, but for these two; None: its owner was not asked.
        settings: those that decide what the store's bytes mean, by name; see `reput.store.state.recorded_settings`.
        damage: what is known to be damaged of the log: what an operator has accepted, and what readers of whoever
            writes the store came upon and would find again.
    """

    store: str
    store_id: str | None
    version: str
    started: int | None
    writer: WriterRow
    dispatchers: list[DispatcherRow]
    supervisor_pid: int | None = None
    waiting_delays: dict[int, int] | None = None
    half_messages: int | None = None
    statistics: dict[str, Any] | None = None
    damage: list[DamageRow] = []
    settings: dict[str, Any] = {}
