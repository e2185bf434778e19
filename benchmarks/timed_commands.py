"""Commands run one at a time, each in its own processes, with their reports and the disturbing load."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["BODY", "Command", "TimedRun", "run_command"]

ERROR_LINES = 3
# The usual size of a body, and the fewest messages of another size that say something.
BODY = 1024
FEWEST = 25_000


class Command(msgspec.Struct, frozen=True):
    """A command line.

    Attributes:
        sizes: its options as (option, usual size, size of a quick run).
        body: its option for the size of a body; None if it has none.
    """

    words: tuple[str, ...]
    sizes: tuple[tuple[str, int, int], ...] = ()
    body: str | None = None

    def line(self, *, quick: bool, body: int = BODY) -> list[str]:
        """Return the words of the command line. Of larger bodies there are fewer, so that a run keeps its bytes."""
        sizes = {option: small if quick else usual for option, usual, small in self.sizes}
        if body != BODY and self.body is not None:
            count = sizes["--count"]
            sizes["--count"] = min(count, max(FEWEST, count * BODY // body))
            sizes[self.body] = body
        return [*self.words, *(word for option, size in sizes.items() for word in (option, str(size)))]


class TimedRun(msgspec.Struct, frozen=True):
    """The result of one command.

    Attributes:
        reports: the JSON objects that it printed, one per line.
        seconds: from its start to its end.
        other_load_cores: processor time of all other processes meanwhile, in cores. Above 0.1 it distorts the 99.9th
            percentile, above 0.3 every figure.
        failed: why reports are missing; None if none are.
    """

    reports: list[dict[str, Any]]
    seconds: float
    other_load_cores: float
    failed: str | None = None


def run_command(
    command: Sequence[str], timeout: float, *, environment: Mapping[str, str] | None = None, errors: Path | None = None
) -> TimedRun:
    """Run *command* for at most *timeout* seconds, and kill the processes that it leaves behind.

    Dirty pages are written first, so that no command pays for the one before it.

    Args:
        errors: the file to which its stderr is appended; None: discarded.
    """
    os.sync()
    machine, own, begin = machine_seconds(), own_seconds(), time.monotonic()
    said_before = errors.stat().st_size if errors is not None and errors.exists() else 0
    output = b""
    with open(os.devnull if errors is None else errors, "ab") as stderr:
        try:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=stderr, env=environment, start_new_session=True
            )
        except OSError as error:
            return TimedRun([], 0.0, 0.0, f"error={error.strerror}")
        try:
            output, _ = process.communicate(timeout=timeout)
            failed = None if process.returncode == 0 else f"exit_code={process.returncode}"
        except subprocess.TimeoutExpired:
            failed = f"timeout_s={timeout:g}"
        finally:
            end_session(process)
    seconds = time.monotonic() - begin
    others = (machine_seconds() - machine) - (own_seconds() - own)
    if failed and errors is not None:
        failed += last_error_lines(errors, said_before)
    reports = [found for line in output.splitlines() if isinstance(found := as_json(line), dict)]
    return TimedRun(reports, round(seconds, 2), round(max(others, 0.0) / seconds, 3), failed)


def end_session(process: subprocess.Popen[bytes]) -> None:
    """Kill the remaining processes of a command's session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def last_error_lines(errors: Path, begin: int) -> str:
    """Return the last lines written to *errors* from *begin* on."""
    lines = [line.strip() for line in errors.read_bytes()[begin:].decode("utf-8", "replace").splitlines()]
    said = " / ".join([line for line in lines if line][-ERROR_LINES:])
    return f" said={said!r}" if said else ""


def as_json(line: bytes) -> object:
    """Return the value of one line, None if it is not JSON."""
    try:
        return json.loads(line)
    except ValueError:
        return None


def own_seconds() -> float:
    """Return the processor time of this process and of all its reaped descendants."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in used)


def machine_seconds() -> float:
    """Return the processor time that the machine has spent on anything since it booted."""
    fields = Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]
    # The fourth and the fifth field are idle time, and idle time while waiting for a disk.
    busy = sum(int(field) for number, field in enumerate(fields) if number not in (3, 4))
    return busy / os.sysconf("SC_CLK_TCK")
