"""The `reput` command as started by a benchmark: with this interpreter, in a user's environment."""

from __future__ import annotations

import os
import sys

__all__ = ["REPUT", "user_environment"]

# `reput` of the running interpreter.
REPUT = (sys.executable, "-c", "import sys; from reput.cli import main; sys.exit(main())")


def user_environment() -> dict[str, str]:
    """Return the environment without the variable that stops Python from writing compiled modules.

    An installed command finds its modules compiled, so a measured one must, too.
    """
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
