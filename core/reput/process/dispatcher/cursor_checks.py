"""Checks of the cursors that a plugin returns: at a start, after a rebuild, and after a flush."""

from __future__ import annotations

from reput.errors import DispatcherError, StoreError
from reput.store.state.epochs import Epochs
from reput_hooks import Cursor, RebuildNeeded

__all__ = [
    "StartRefused",
    "check_flushed",
    "check_started",
    "history_difference",
    "rebuild_refused",
    "rebuilt_twice",
    "returned_cursor",
]


class StartRefused(DispatcherError):
    """The view cannot continue with this store, and a retry would not help."""


def returned_cursor(name: str, method: str, cursor: object) -> Cursor | None:
    """Return *cursor*, which the plugin's *method* returned.

    Raises:
        DispatcherError: it is not a cursor.
    """
    if cursor is None or (isinstance(cursor, Cursor) and cursor.commit_log_offset >= 0):
        return cursor
    raise DispatcherError(f"{method} returned no cursor: dispatcher={name} returned={cursor!r:.200}")


def check_started(
    name: str, cursor: Cursor | None, *, is_empty: bool, builds_anew: bool, came_to: int, commit_log_offset_min: int
) -> None:
    """Check what `start` returned against the view's folders.

    Args:
        is_empty: the folders of the view are empty.
        builds_anew: the view is built from the beginning of the log.
        came_to: commit-log offset that a view elsewhere reached before; 0: not known.

    Raises:
        StartRefused: the view lies elsewhere, and its folder does not show how far it has come.
    """
    if not is_empty:
        return
    if builds_anew and cursor is not None:
        raise StartRefused(
            "the dispatcher cannot rebuild its external view; give it another place in its options to begin with "
            f"the log: dispatcher={name} commit_log_offset={cursor.commit_log_offset}",
        )
    if cursor is None and came_to > commit_log_offset_min:
        raise StartRefused(
            "the view lies elsewhere and its folder is empty, so all records would be sent again: "
            f"dispatcher={name} came_to={came_to}",
            f"Restore its folder, or `reput rebuild STORE {name} --force`.",
        )


def history_difference(
    name: str, epochs: Epochs, cursor: Cursor, commit_log_offset_min: int, appended: int | None
) -> Cursor | None:
    """Return where the log's history diverges from the view's, or None if the view can continue from *cursor*.

    Raises:
        StartRefused: *cursor* belongs to another store.
    """
    try:
        difference = epochs.first_difference(cursor, commit_log_offset_min)
    except StoreError as error:
        raise StartRefused(f"{error} dispatcher={name}", error.advice) from None
    if difference is None and appended is not None and cursor.commit_log_offset > appended:
        # The epochs record no cut there, so the view starts again at the first offset that the log holds.
        return Cursor(epochs.store_id, epochs.epoch, commit_log_offset_min, 0)
    return difference


def rebuild_refused(name: str, commit_log_offset: int, needed: RebuildNeeded) -> StartRefused:
    """Return the error for a view elsewhere that would need a rebuild: the whole log would be sent there again."""
    reason = str(needed.__cause__ or needed) or "the log's history differs from the view's, which cannot be truncated"
    return StartRefused(
        f"the view lies elsewhere, and only an operator may rebuild it: dispatcher={name} "
        f"commit_log_offset={commit_log_offset} reason={reason}",
        f"`reput rebuild STORE {name} --force` sends it all records of the log once more.",
    )


def rebuilt_twice(name: str, commit_log_offset: int) -> DispatcherError:
    """Return the error for a dispatcher that asks for a rebuild without a flush since the last one."""
    return DispatcherError(
        f"the dispatcher asks for a rebuild right after a rebuild: dispatcher={name} "
        f"commit_log_offset={commit_log_offset}"
    )


def check_flushed(name: str, durable: Cursor, dispatched: Cursor) -> None:
    """Check the cursor that `flush` returned.

    Raises:
        DispatcherError: it lies beyond what was *dispatched*, or belongs to another store.
    """
    if durable.commit_log_offset > dispatched.commit_log_offset:
        raise DispatcherError(
            f"the durable cursor lies beyond what was dispatched: dispatcher={name} "
            f"durable={durable.commit_log_offset} dispatched={dispatched.commit_log_offset}"
        )
    if durable.store_id != dispatched.store_id:
        raise DispatcherError(
            f"the durable cursor belongs to another store: dispatcher={name} store_id={durable.store_id} "
            f"expected={dispatched.store_id}"
        )
