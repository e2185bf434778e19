"""replace_durably: replaces a small file; a crash leaves either the old file or the new one."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["named", "replace_durably"]


def replace_durably(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replace *path* by *data* as a whole: draft, fsync, rename, fsync of the directory.

    Args:
        mode: of the file, less the process's umask.

    Raises:
        OSError: the old file is still there, unless forcing the directory to disk failed. The error names the file.
    """
    draft = path.with_name(path.name + ".draft")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    except OSError as error:
        raise named(error, draft) from None
    finally:
        os.close(descriptor)
    os.rename(draft, path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    except OSError as error:
        raise named(error, path.parent) from None
    finally:
        os.close(directory)


def named(error: OSError, path: Path) -> OSError:
    """Return *error*, with *path* as its file if it has none: calls on a descriptor do not know the name."""
    if error.filename is None:
        error.filename = str(path)
    return error
