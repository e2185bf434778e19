"""Libraries of the extra ``typed``, which only some formats need."""

from __future__ import annotations

from importlib.util import find_spec

from reput.errors import DispatcherError

__all__ = ["require_library"]


def require_library(*names: str) -> None:
    """Check that libraries are installed.

    Raises:
        DispatcherError: some are missing; the message names them.
    """
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise DispatcherError(
            f"this format needs packages that are not installed: missing={','.join(missing)}",
            'Install them with: pip install "reput[typed]".',
        )
