"""role_command: the command line of a fresh reput process, for one of its roles.

The process is isolated (`python -I`): neither the current folder nor the user's environment affects what `import`
finds. So that it sees the same plugins as the program that started it, it gets that program's `sys.path`, behind
everything that an isolated interpreter finds by itself.
"""

from __future__ import annotations

import os
import signal
import site
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["SIGNALS_HELD_AT_START", "holding_signals", "role_command"]

# Signals that end a process without a handler but mean something else to a supervisor. It unblocks them itself.
SIGNALS_HELD_AT_START = frozenset({signal.SIGTERM, signal.SIGHUP})

MAIN = Path(__file__).parents[1] / "__main__.py"


def role_command(role: str, *arguments: str, path: Sequence[str], main: Path = MAIN) -> list[str]:
    """Return the command line for *role*, with the folders of *path* as further entries of `sys.path`.

    *main* is the module that knows the role.
    """
    library = os.path.dirname(os.__file__)
    found_anyway = {*site.getsitepackages(), library, os.path.join(library, "lib-dynload")}
    further = [os.path.abspath(entry) for entry in path if os.path.exists(entry) and entry not in found_anyway]
    return [sys.executable, "-I", str(main), os.pathsep.join(further), role, *arguments]


@contextmanager
def holding_signals() -> Iterator[None]:
    """Start processes in this context with `SIGNALS_HELD_AT_START` blocked, until they unblock them."""
    former = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS_HELD_AT_START)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
