"""force_log: bytes of the log that a killed writer left in the pages of the system, on disk."""

from __future__ import annotations

from reput.errors import StoreError
from reput.store.disk.files import Files
from reput.store.log.segments import Segments

__all__ = ["force_log"]


def force_log(files: Files, segments: Segments, begin: int, end: int) -> None:
    """Force [begin, end) of the log, which a killed writer appended but did not force; from now on it counts as
    durable.

    Raises:
        StoreError: the disk refuses.
    """
    path = segments.directory
    try:
        for segment in segments.list:
            path = segment.path
            if segment.begin < end and segment.end > begin:
                file = files.open(path)
                try:
                    file.force()
                finally:
                    file.close()
        # A writer that was killed between making a segment and forcing its name leaves that to us.
        files.force_directory(segments.directory)
    except OSError as error:
        raise StoreError(f"the log could not be forced to disk: path={path} error={error.strerror}") from error
