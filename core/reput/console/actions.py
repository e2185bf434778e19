"""Actions: what an operator may do from the console, with what is said before it is confirmed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, cast

from reput.client.client import Client
from reput.console.jobs import Progress, Work
from reput.consume.pull.topic_reader import Beginning
from reput.errors import ConfigError
from reput.process.control.control_messages import Verb
from reput.process.control.control_socket import request
from reput.process.owner.dead_letter_replay import replay_dead_letters
from reput.process.owner.offline_rebuild import rebuild_in_place

__all__ = ["DISPATCHER_ACTIONS", "OperatorAction", "parse_place", "reset_work"]

Name: TypeAlias = Literal["pause", "resume", "restart", "rebuild", "replay"]


class OperatorAction(NamedTuple):
    """One action on a dispatcher of an open store.

    Attributes:
        consequence: what a person reads before confirming.
        work: returns the work on a store and a dispatcher.
    """

    title: str
    consequence: str
    work: Callable[[Path, str], Work]


def control(verb: Verb, done: str) -> Callable[[Path, str], Work]:
    """Return the work of a request that the process group answers at once."""

    def of(store: Path, name: str) -> Work:
        def work(progress: Progress) -> str:
            request(store, verb, name)
            return done

        return work

    return of


def rebuild(store: Path, name: str) -> Work:
    """Return the work that rebuilds a view beside the running one and swaps it in."""

    def work(progress: Progress) -> str:
        rows = rebuild_in_place(store, (name,), on_progress=lambda view, done, total: progress(done, total))
        return "; ".join(f"{row.view}: {row.bytes} bytes of the log in {row.seconds:.1f} s, swapped in" for row in rows)

    return work


def replay(store: Path, name: str) -> Work:
    """Return the work that gives a dispatcher its dead letters again."""

    def work(progress: Progress) -> str:
        rows = replay_dead_letters(store, name)
        counts: dict[str, int] = {}
        for row in rows:
            counts[row.outcome] = counts.get(row.outcome, 0) + 1
        return ", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "there were none"

    return work


DISPATCHER_ACTIONS: dict[str, OperatorAction] = {
    "pause": OperatorAction(
        "Pause",
        "The dispatcher flushes its view and stops until it is resumed. Its view falls behind, and retention keeps the "
        "log for it for a while only. Reads through the view do not see new messages.",
        control("pause", "paused"),
    ),
    "resume": OperatorAction(
        "Resume", "The dispatcher starts and catches up from where its view ends.", control("resume", "resumed")
    ),
    "restart": OperatorAction(
        "Restart",
        "The dispatcher flushes its view, stops and starts again. Reads see new messages a moment later.",
        control("restart", "restarted"),
    ),
    "rebuild": OperatorAction(
        "Rebuild",
        "A second dispatcher builds the view from the whole log, and the new view takes the place of the old one. Puts "
        "and reads go on meanwhile. It reads the log once and needs room for a second view.",
        rebuild,
    ),
    "replay": OperatorAction(
        "Replay dead letters",
        "The dispatcher is restarted and gets the records again that it rejected. Those it rejects again stay.",
        replay,
    ),
}


def parse_place(text: str) -> Beginning:
    """Return the place that a group is reset to: earliest, latest, or a store time in ms.

    Raises:
        ConfigError: it is no such place.
    """
    if text in ("earliest", "latest"):
        return cast("Beginning", text)
    if text.isascii() and text.isdigit():
        return int(text)
    raise ConfigError(f"this is not a place in a topic: to={text!r}", "Give earliest, latest, or ms since 1970.")


def reset_work(client: Client, group: str, topic: str, to: Beginning) -> Work:
    """Return the work that moves a group to another place in a topic."""

    def work(progress: Progress) -> str:
        rows = client.administration.reset_offsets(group, topic, to)
        return ", ".join(f"queue {row.queue_id} at {row.consumer_offset}" for row in rows)

    return work
