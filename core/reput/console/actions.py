"""Actions: what an operator may do from the console, with what is said before it is confirmed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, TypeAlias, cast

import msgspec

from reput.client.client import Client
from reput.console.jobs import Progress, Work
from reput.consume.administration.dead_letters import RedrivenLetter
from reput.consume.pull.topic_reader import Beginning
from reput.errors import ConfigError
from reput.process.control.control_messages import Verb
from reput.process.control.control_socket import request
from reput.process.owner.dead_letter_replay import replay_dead_letters
from reput.process.owner.offline_rebuild import rebuild_in_place

__all__ = ["DISPATCHER_ACTIONS", "OperatorAction", "RedriveChoice", "parse_place", "redrive_work", "reset_work"]

# A person who confirms a redrive waits for the count.
COUNTED_MAX = 10_000
# Numbers of fewer digits fit into 64 bits.
DIGITS_END = 19

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
    if text.isascii() and text.isdigit() and len(text) < DIGITS_END:
        return int(text)
    raise ConfigError(f"this is not a place in a topic: to={text!r}", "Give earliest, latest, or ms since 1970.")


def reset_work(client: Client, group: str, topic: str, to: Beginning) -> Work:
    """Return the work that moves a group to another place in a topic."""

    def work(progress: Progress) -> str:
        rows = client.administration.reset_offsets(group, topic, to)
        return ", ".join(f"queue {row.queue_id} at {row.consumer_offset}" for row in rows)

    return work


class RedriveChoice(msgspec.Struct, frozen=True):
    """Which dead letters of a group are put back, and where to.

    Attributes:
        topic, tags: only letters that were sent to this topic, or have these tags; None: all.
        count, rate: at most so many, or so many a second; None: all, as fast as it goes.
    """

    FIELDS: ClassVar[tuple[str, ...]] = ("redrive_to", "topic", "tags", "count", "rate")

    to: Literal["topic", "group"] = "topic"
    topic: str | None = None
    tags: str | None = None
    count: int | None = None
    rate: int | None = None

    @classmethod
    def of(cls, given: dict[str, str]) -> RedriveChoice:
        """Return what a form says.

        Raises:
            ConfigError: a number is malformed, or the target is neither topic nor group.
        """
        numbers: dict[str, int | None] = {}
        for name in ("count", "rate"):
            text = given.get(name, "")
            if text and not (text.isascii() and text.isdigit() and len(text) < DIGITS_END and int(text) > 0):
                raise ConfigError(f"not a whole number: {name}={text!r}", "Give one above 0, or nothing.")
            numbers[name] = int(text) if text else None
        to = given.get("redrive_to") or "topic"
        if to not in ("topic", "group"):
            raise ConfigError(f"dead letters go to the topic or to the group: to={to!r}", "Choose one of the two.")
        target = cast("Literal['topic', 'group']", to)
        return cls(target, given.get("topic") or None, given.get("tags") or None, numbers["count"], numbers["rate"])

    def is_whole(self) -> bool:
        """Return whether no letter is passed over, so that the next redrive goes on behind them."""
        return self.topic is None and self.tags is None

    def text(self) -> str:
        """Return the choice as the audit log has it."""
        return " ".join(
            f"{name}={value}" for name in self.__struct_fields__ if (value := getattr(self, name)) is not None
        )

    def letters(self, client: Client, group: str, *, dry_run: bool) -> Generator[RedrivenLetter, None, None]:
        """Yield what becomes of each chosen letter."""
        return client.administration.dead_letters(group).redrive(
            to=self.to,
            topic=self.topic,
            tags=self.tags,
            count=self.count,
            rate=None if dry_run else self.rate,
            dry_run=dry_run,
        )

    def count_chosen(self, client: Client, group: str) -> str:
        """Return how many letters there are, as text: not all are counted if there are very many."""
        count = 0
        with closing(self.letters(client, group, dry_run=True)) as rows:
            for count, _ in enumerate(rows, 1):
                if count == COUNTED_MAX:
                    return f"{count} or more"
        return str(count)


def redrive_work(client: Client, group: str, choice: RedriveChoice) -> Work:
    """Return the work that puts dead letters of a group back."""

    def work(progress: Progress) -> str:
        total = choice.count_chosen(client, group)
        counts: Counter[str] = Counter()
        with closing(choice.letters(client, group, dry_run=False)) as rows:
            for row in rows:
                counts[row.outcome] += 1
                progress(counts.total(), int(total) if total.isdigit() else 0)
        return ", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "there were none"

    return work
