"""replay_dead_letters: replays the records that a dispatcher rejected, and reports the outcome of each."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Literal

import msgspec

from reput.errors import WaitTimeout
from reput.process.control.control_socket import group_status, request
from reput.process.views.dead_letters import DeadLetters

__all__ = ["ReplayRow", "replay_dead_letters"]

LOOK_S = 0.02
RUNS = ("STARTING", "RUNNING", "BACKOFF")


class ReplayRow(msgspec.Struct, frozen=True):
    """The outcome of one dead letter.

    Attributes:
        outcome: "taken": it is in the view, and no longer a dead letter. "rejected": again; *reason* says why.
            "left": it could not be replayed, because the log no longer holds it or the dispatcher failed; the group's
            log says which. "waiting": the dispatcher does not run now, and gets it at its next start.
    """

    commit_log_offset: int
    topic: str
    queue_id: int
    queue_offset: int
    outcome: Literal["taken", "rejected", "left", "waiting"]
    reason: str


def replay_dead_letters(store_directory: Path, name: str, timeout: float = 60.0) -> list[ReplayRow]:
    """Replay all dead letters of a dispatcher: now if it runs, otherwise at its next start.

    Raises:
        DispatcherError: its process group refused the request, or cannot be asked.
        WaitTimeout: the dispatcher did not finish within *timeout* seconds; the request remains.
    """
    dead_letters = DeadLetters(store_directory, name)
    # Before the request is stored: if the group cannot be asked, its outcome could not be reported.
    status = group_status(store_directory)
    requested = dead_letters.request_replay()
    running = status is not None and any(row.name == name and row.state in RUNS for row in status.dispatchers)
    if requested and running:
        request(store_directory, "restart", name)
        await_replay(dead_letters, timeout)
    left = {letter.identity: letter for letter in dead_letters.read()}
    rows = []
    for letter in requested:
        now = left.get(letter.identity)
        outcome: Literal["taken", "rejected", "left", "waiting"]
        if not running:
            outcome = "waiting"
        elif now is None:
            outcome = "taken"
        else:
            outcome = "left" if now == letter else "rejected"
        rows.append(
            ReplayRow(
                letter.commit_log_offset,
                letter.topic,
                letter.queue_id,
                letter.queue_offset,
                outcome,
                (now or letter).reason,
            )
        )
    return rows


def await_replay(dead_letters: DeadLetters, timeout: float) -> None:
    """Return when the dispatcher has finished, or given up, the requested replay.

    Raises:
        WaitTimeout: it has not within *timeout* seconds.
    """
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while dead_letters.replay_is_due():
        if time.monotonic() > deadline:
            raise WaitTimeout(
                f"the dispatcher has not replayed its dead letters yet: dispatcher={dead_letters.name} "
                f"timeout={timeout:g}",
                "It does so as soon as it runs; see `reput status STORE`.",
            )
        pause.wait(LOOK_S)
