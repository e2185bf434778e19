"""The command line: one module per verb. It parses, calls the engine and prints; nothing is decided here.

main ──▶ running ──▶ application ──▶ verbs/ ──▶ reput, reput.store, …   (imported when the verb runs)
           │                           ├─ target/     what verbs work on: an open store, a stopped one, brokers
           │                           └─ terminal/   options  what several verbs take
           └─ failure: exit code,                     rows     objects of the engine as the rows that were promised
              two lines on stderr                     output   rows to stdout, as text or JSON
                                                      progress bars on stderr
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

INTERRUPTED = 130
HELP = frozenset({"-h", "--help"})

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, by default the one that the process was started for, and return its exit code."""
    try:
        if arguments is None and sys.argv[1:2] == ["serve"] and not HELP.intersection(sys.argv):
            # The broker's process loads its modules while this one loads the parser and reads the arguments.
            from reput.broker.broker_process import begin_early

            begin_early()
        # Loading takes a while, in which a person may have changed his mind.
        from reput.cli.running import run
    except KeyboardInterrupt:
        return INTERRUPTED
    return run(arguments)
