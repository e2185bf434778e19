"""Archives of the tests, unpacked by any Python."""

from __future__ import annotations

import tarfile
from pathlib import Path

__all__ = ["unpack_tar"]


def unpack_tar(archive: Path, target: Path) -> None:
    """Unpack the tar file *archive* below *target*, with its file times."""
    with tarfile.open(archive) as opened:
        # The parameter `filter` came with Python 3.11.4; Debian 12 has 3.11.2, which does not read the attribute.
        opened.extraction_filter = getattr(tarfile, "data_filter", None)
        opened.extractall(target)
