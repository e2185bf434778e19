"""run_contract: tries the clauses in a process that the plugin may hang or crash; a new process then continues."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from reput.errors import ConfigError, ReputError
from reput.process.contract.host import promises, run_clause
from reput.process.control.control_messages import Reply
from reput.process.plugin.catalogue import select_dispatchers
from reput.process.system.command import role_command
from reput.settings import Settings

__all__ = ["ClauseRow", "main", "run_contract"]

STDERR = 2


class ClauseRow(msgspec.Struct, frozen=True):
    """The result of one clause.

    Attributes:
        promise: what the clause tests, as a sentence.
        reason: why the promise is broken or does not apply.
        seconds: the duration.
    """

    clause: str
    promise: str
    state: Literal["kept", "broken", "not applicable"]
    reason: str | None
    traceback: str | None
    seconds: float


class ContractQuestion(msgspec.Struct, frozen=True):
    """The task of a contract process."""

    dispatcher: str
    settings: Settings
    clauses: list[str]


class ContractNotice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message of the process: a row, or the reason why it could not begin."""

    row: ClauseRow | None = None
    refusal: Reply | None = None


def run_contract(
    dispatcher: str, settings: Settings, clauses: Sequence[str], *, time_max: float = 120.0
) -> Iterator[ClauseRow]:
    """Try *clauses* in order, and yield the result of each.

    Args:
        time_max: limit per clause, in seconds.

    Raises:
        ConfigError: the dispatcher is not installed, or one of its options is wrong.
    """
    select_dispatchers([dispatcher], settings.dispatcher_plugins)
    left = list(clauses)
    while left:
        process = ContractProcess(ContractQuestion(dispatcher, settings, left))
        try:
            while left:
                began = time.monotonic()
                notice = process.receive(began + time_max)
                if notice is None:
                    # For any failure of the process, the clause that it was trying counts as broken.
                    seconds = time.monotonic() - began
                    reason = process.end() if seconds < time_max else f"it did not end in {time_max:g} seconds"
                    name = left.pop(0)
                    yield ClauseRow(name, promises()[name], "broken", reason, None, seconds)
                    break
                if notice.refusal is not None:
                    notice.refusal.check()
                if notice.row is not None:
                    left.remove(notice.row.clause)
                    yield notice.row
        finally:
            process.end()


class ContractProcess:
    """The process that tries clauses, and its messages."""

    def __init__(self, question: ContractQuestion) -> None:
        self.reading, writing = os.pipe2(os.O_CLOEXEC)
        self.received = b""
        self.process = subprocess.Popen(
            role_command("contract", str(writing), path=sys.path),
            stdin=subprocess.PIPE,
            # Output of the plugin must not mix with results.
            stdout=STDERR,
            pass_fds=[writing],
            start_new_session=True,
        )
        os.close(writing)
        assert self.process.stdin is not None
        with self.process.stdin as stdin:
            stdin.write(msgspec.json.encode(question))

    def receive(self, deadline: float) -> ContractNotice | None:
        """Return the next message of the process; None: it ended, or sent nothing until *deadline*."""
        poll = select.poll()
        poll.register(self.reading, select.POLLIN)
        while b"\n" not in self.received:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not poll.poll(remaining * 1000):
                return None
            data = os.read(self.reading, 1 << 16)
            if not data:
                return None
            self.received += data
        line, _, self.received = self.received.partition(b"\n")
        return msgspec.json.decode(line, type=ContractNotice)

    def end(self) -> str:
        """Kill the process and its children, if they still run; return how the process ended."""
        if self.reading >= 0:
            os.close(self.reading)
            self.reading = -1
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        status = self.process.wait()
        return f"its process died: signal={-status}" if status < 0 else f"its process ended: exit_status={status}"


def main(arguments: Sequence[str]) -> None:
    """Read a `ContractQuestion` from stdin and send a `ContractNotice` per clause; the argument is the descriptor."""
    descriptor = int(arguments[0])
    os.set_inheritable(descriptor, False)
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=ContractQuestion)
    # The clauses cause the host's warnings on purpose.
    logging.getLogger("reput").setLevel(logging.CRITICAL)

    def say(notice: ContractNotice) -> None:
        data = msgspec.json.encode(notice) + b"\n"
        while data:
            data = data[os.write(descriptor, data) :]

    try:
        for clause in question.clauses:
            say(ContractNotice(row=clause_row(clause, question)))
    except ReputError as error:
        say(ContractNotice(refusal=Reply.refusal(0, error)))
    # The plugin's threads and exit handlers must not delay the end.
    os._exit(0)


def clause_row(clause: str, question: ContractQuestion) -> ClauseRow:
    """Try one clause, and return its result."""
    began = time.monotonic()
    state: Literal["kept", "broken", "not applicable"] = "kept"
    trace: str | None = None
    with tempfile.TemporaryDirectory(prefix="reput-contract-") as directory:
        try:
            reason = run_clause(clause, question.dispatcher, question.settings, (), Path(directory))
            if reason is not None:
                state = "not applicable"
        except ConfigError:
            raise
        except AssertionError as error:
            state, reason = "broken", str(error)
        except BaseException as error:
            state, reason, trace = "broken", f"{type(error).__name__}: {error}", traceback.format_exc()
    return ClauseRow(clause, promises()[clause], state, reason, trace, time.monotonic() - began)
