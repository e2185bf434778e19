"""The command line: one module per verb. It parses, calls the engine and prints; nothing is decided here.

main ──▶ running ──▶ application ──▶ verbs/ ──▶ reput, reput.store, …   (imported when the verb runs)
           │                           ├─ target/     what verbs work on: an open store, a stopped one, brokers
           │                           └─ terminal/   options  what several verbs take
           └─ failure: exit code,                     rows     objects of the engine as the rows that were promised
              two lines on stderr                     output   rows to stdout, as text or JSON
                                                      progress bars on stderr
"""

from __future__ import annotations

from collections.abc import Sequence

INTERRUPTED = 130

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, by default the one that the process was started for, and return its exit code."""
    try:
        # Loading takes a while, in which a person may have changed his mind.
        from reput.cli.running import run
    except KeyboardInterrupt:
        return INTERRUPTED
    return run(arguments)
