"""The command line: one module per verb. It parses, calls the engine and prints; nothing is decided here.

main ──▶ application ──▶ a verb's module ──▶ reput, reput.store, …   (imported when the verb runs)
  │                            │
  └─ failure: exit code,       ├─ options   what several verbs take
     two lines on stderr       ├─ rows      objects of the engine as the rows that were promised
                               ├─ output    rows to stdout, as text or JSON
                               └─ progress  bars on stderr
"""

from __future__ import annotations

from reput.cli.main import main

__all__ = ["main"]
