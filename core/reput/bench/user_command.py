"""The `reput` command as a benchmark starts it: with this interpreter, in the environment of a user."""

from __future__ import annotations

import os
import sys

__all__ = ["REPUT", "user_environment"]

# `reput`, as the running interpreter has it.
REPUT = (sys.executable, "-c", "import sys; from reput.cli import main; sys.exit(main())")


def user_environment() -> dict[str, str]:
    """Return the environment without the variable that stops Python from keeping compiled modules.

    An installed command finds its modules compiled; a measured one must, too.
    """
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
