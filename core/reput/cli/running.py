"""run: the process of one `reput` command, from its arguments to its exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from reput.cli.terminal.failure import INTERRUPTED, failure_of
from reput.cli.terminal.output import OutputClosed
from reput.errors import ReputError

__all__ = ["run"]

TRACEBACK = "--traceback"


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 success, 1 no, 2 wrong request, 3 cannot be used, 130 interrupted.

    ``--traceback`` is allowed anywhere before a ``--``.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    ours = words[: words.index("--")] if "--" in words else words
    wants_traceback = TRACEBACK in ours
    if wants_traceback:
        words.remove(TRACEBACK)
    try:
        take_standard_streams()
        from reput.cli.application import application

        code = application(words)(words, prog_name="reput", standalone_mode=False)
        sys.stdout.flush()
    except (OutputClosed, BrokenPipeError):
        # The reader stopped early, as in `reput dump STORE | head`. Otherwise Python would flush once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Exception as error:
        if wants_traceback:
            raise
        failure = failure_of(error)
        print(f"reput: {failure.sentence}", f"       {failure.advice}", sep="\n", file=sys.stderr)
        return failure.exit_code
    return code if isinstance(code, int) else 0


def take_standard_streams() -> None:
    """Open all three standard streams: otherwise a file opened later could get the number of a closed stream, and
    prints and logs would be written into it.

    Raises:
        ReputError: stdout is closed.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        raise ReputError("stdout is closed: descriptor=1", "Redirect it to /dev/null if you do not need it.")
    if sys.stdin is None:
        sys.stdin = open(0)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w")  # noqa: SIM115
