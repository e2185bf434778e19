"""Continuing a lake: decide whether it holds this store's log, and up to where the two still agree.

    the lake has the store's own id           → the lake continues with that id
    the store has no id, or another one       → the id whose marks the log holds and does not refute; else a refusal
    the operator names an id of the lake      → the lake continues with that id

Then the histories are compared. Rows are deleted only where the log has another history: from a cut that the store
recorded, or after the last common record if the log refutes a later one. Rows below the log's minimum stay, because
the log cannot contradict them. The operator must accept the deletion (`accept_truncation`) if no common record shows
where lake and log part, or if the log simply ends before the lake.
"""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path

import msgspec

from reput.errors import ConfigError, StoreError
from reput.store.state.epochs import Epochs, read_epochs
from reput.store.state.identity import derive_store_id, read_identity
from reput.table import LogTable
from reput.table.log_marks import LogMark, MarkComparison, compare_marks, find_parting, joined_marks
from reput_hooks import Cursor
from reput_plugins.spark_export.lake import Lake, tells_stores_apart
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.lake_marks import committed_marks, count_rows, row_marks
from reput_plugins.spark_export.lake_sources import all_sources, row_name
from reput_plugins.spark_export.lakes.lake_table import LakeTable
from reput_plugins.spark_export.lakes.opening import find_table, open_table
from reput_plugins.spark_export.typed.typed_folder import refuse_typed_tables

__all__ = ["continue_lake", "lake_of_store", "truncate_lake"]

logger = logging.getLogger(__name__)

MakeLake = Callable[[LakeLocation, str, Epochs, str | None], Lake]
LEGAL_STORE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
CUT_BELOW = "the log was cut below what the lake holds"


class Source(msgspec.Struct, frozen=True):
    """The part of a lake that comes from one store.

    Attributes:
        cursor: how far the lake holds the log, under the store's id in the lake.
        marks: marks of that part.
        committed: whether the marks come from a transaction.
        compared: the marks compared with the log.
    """

    cursor: Cursor
    marks: list[LogMark]
    committed: bool
    compared: MarkComparison


class Cut(msgspec.Struct, frozen=True):
    """Where the log's history departs from the lake's. *log_ends*: the log ends there."""

    commit_log_offset: int
    log_ends: bool = False


def lake_of_store(
    location: LakeLocation,
    export_name: str,
    store_directory: Path,
    store_id: str,
    store_name: str | None = None,
    make: MakeLake = Lake,
) -> Lake:
    """Return the lake for the store whose id in the lake is *store_id*, with the store's current epochs."""
    epochs = read_epochs(store_directory, store_id)
    return make(location, export_name, msgspec.structs.replace(epochs, store_id=store_id), store_name)


def continue_lake(
    location: LakeLocation,
    export_name: str,
    log: LogTable,
    *,
    topics: Sequence[str] | None = None,
    store_id: str | None = None,
    accept_truncation: bool = False,
    make: MakeLake = Lake,
) -> Lake:
    """Return the lake, under the store's id in it, cut to where the log continues it.

    Args:
        topics: topics to keep; None: all.
        store_id: the store's id in the lake, given by the operator; None: find it.
        accept_truncation: delete rows even if it is uncertain where the difference begins.
        make: the kind of table.

    Raises:
        ConfigError: the table is not a reput lake, or keeps other topics; the folder holds typed tables.
        StoreError: the lake holds another store; or rows must be deleted, and the operator has not accepted that.
    """
    if store_id is not None and not LEGAL_STORE_ID.fullmatch(store_id):
        raise ConfigError(
            f"a store's id has at most 64 letters, digits, '.', '_' and '-': store_id={store_id!r}",
            "Give an id like this: --store-id broker-a.",
        )
    identity = read_identity(log.store_directory)
    recorded = None if identity is None else identity.store_id
    table = find_table(location)
    lake = lake_of_store(location, export_name, log.store_directory, store_id or recorded or log.store_id, make=make)
    if table is None:
        refuse_typed_tables(location)
        return lake
    lake.refuse_another(table, topics)
    exports = all_sources(table)
    cursors = exports.pop(export_name, [])
    source = find_source(table, lake, cursors, log, recorded, store_id) if cursors else None
    if source is None:
        refuse_second_name(table, lake, exports, log)
        return lake
    known = source.cursor
    name = row_name(table, known.store_id, export_name)
    lake = lake_of_store(location, export_name, log.store_directory, recorded or known.store_id, name, make)
    present = Cursor(lake.epochs.store_id, lake.epochs.epoch, known.commit_log_offset, 0)
    retired = left_behind(cursors, known, present)
    cut = find_cut(lake, source, log)
    if cut is not None:
        take_out(lake, table, log, cut, source, retired, accepted=accept_truncation)
    elif known != present or (source.marks and not source.committed):
        lake.go_on(table, present, source.marks, retired)
    return lake


def left_behind(cursors: Sequence[Cursor], known: Cursor, present: Cursor) -> list[Cursor]:
    """Return those of *cursors* that become invalid once the lake continues from *known* as *present*.

    These are the store's epochs above its current one, whose numbers will be reused after the epochs file was lost or
    restored from an earlier copy, and all epochs of the store's previous id.
    """
    return [
        cursor
        for cursor in cursors
        if (cursor.store_id == present.store_id and cursor.epoch > present.epoch)
        or cursor.store_id == known.store_id != present.store_id
    ]


def truncate_lake(lake: Lake, log: LogTable, cursor: Cursor) -> None:
    """Delete the rows from *cursor* on, at the request of the dispatcher's host.

    Raises:
        StoreError: an operator must accept that first.
    """
    table = open_table(lake.location)
    known = lake.cursor(table)
    if known is not None and known.commit_log_offset > cursor.commit_log_offset:
        take_out(lake, table, log, Cut(cursor.commit_log_offset), source_of(table, lake, known, log))


def find_source(
    table: LakeTable,
    lake: Lake,
    cursors: Sequence[Cursor],
    log: LogTable,
    recorded: str | None,
    given: str | None,
) -> Source | None:
    """Return the lake's part of the store of *log*, according to its newest epoch in *cursors*.

    None: the lake holds nothing of this store, and accepts further stores.

    Raises:
        StoreError: the lake holds another store and accepts only one, or it may hold this store under another id.
    """
    known = {cursor.store_id: cursor for cursor in sorted(cursors, key=lambda cursor: cursor.epoch)}
    for name in (recorded, given):
        if name in known:
            named = source_of(table, lake, known[name], log)
            if given != recorded:
                refuse_other_id(lake, table, named, given)
            return named
    apart = tells_stores_apart(table)
    if given is not None and not apart:
        raise StoreError(
            f"the lake holds no store with that id: lake={lake.location.address} store_id={given} "
            f"lake_store_id={','.join(sorted(known))}",
            "Give the id that this store has in the lake, or export into a separate folder.",
        )
    sources = [source_of(table, lake, cursor, log) for cursor in known.values()]
    agreeing = [source for source in sources if source.compared.agrees or is_unmarked(source, log)]
    if agreeing:
        found = max(agreeing, key=end_of)
        refuse_other_id(lake, table, found, given)
        return found
    # A diverged copy shares records with the lake; these records would then be in the lake twice.
    is_another = all(
        not source.compared.held_count and (source.compared.refuted_count or source.compared.ahead_count)
        for source in sources
    )
    if apart and (given is not None or (recorded is not None and is_another)):
        return None
    other = max(sources, key=end_of)
    compared = other.compared
    what = "holds another store"
    if compared.gone_count and not (compared.held_count or compared.refuted_count or compared.ahead_count):
        what = "may hold another store, the log has no record left that shows it"
    raise StoreError(
        f"the lake {what}: lake={lake.location.address} lake_store_id={other.cursor.store_id} "
        f"lake_until={other.cursor.commit_log_offset} store={log.store_directory} store_id={recorded or 'none'} "
        f"offset_min={log.offset_min} {compared}",
        "Export into a separate folder. If both are the same store, confirm it with --store-id "
        f"{other.cursor.store_id} "
        "(storeId)." + (" If they are different, give this one a name with --store-id NAME." if apart else ""),
    )


def refuse_other_id(lake: Lake, table: LakeTable, source: Source, given: str | None) -> None:
    """Refuse an id that is neither the store's id in the lake nor the name in its rows.

    Raises:
        StoreError: *given* is neither.
    """
    held = source.cursor.store_id
    name = row_name(table, held, lake.export_name)
    if given not in (None, held, name):
        raise StoreError(
            f"the lake holds this log under another id: lake={lake.location.address} store_id={given} "
            f"lake_store_id={name} lake_until={end_of(source)} {source.compared}",
            f"Give --store-id {name} (storeId), or export into another folder.",
        )


def end_of(source: Source) -> int:
    """Return the offset up to which the lake holds the log of *source*."""
    return source.cursor.commit_log_offset


def is_unmarked(source: Source, log: LogTable) -> bool:
    """Return whether there are no marks, but the id matches what an older reput derived from the log's first record."""
    return not source.marks and source.cursor.store_id == derive_store_id(log.segments)


def refuse_second_name(table: LakeTable, lake: Lake, exports: Mapping[str, Sequence[Cursor]], log: LogTable) -> None:
    """Refuse to add a store whose rows another export name already has in the lake.

    Raises:
        StoreError: the lake has such rows, or it holds another store and accepts only one.
    """
    for name, cursors in exports.items():
        other = copy(lake)
        other.export_name = name
        for cursor in cursors:
            same = cursor.store_id == lake.epochs.store_id or source_of(table, other, cursor, log).compared.agrees
            if same or not tells_stores_apart(table):
                what = "has this store's rows" if same else "holds another store"
                raise StoreError(
                    f"the lake {what} from an export with another name: lake={lake.location.address} "
                    f"lake_store_id={cursor.store_id} name={name} asked={lake.export_name}",
                    "Export under that name, or into a separate folder.",
                )


def source_of(table: LakeTable, lake: Lake, cursor: Cursor, log: LogTable) -> Source:
    """Return the lake's part of one store, compared with *log*."""
    until = cursor.commit_log_offset
    found = committed_marks(table, cursor.store_id, lake.export_name)
    if found is not None:
        marks = found
    elif mixed_exports(table):
        marks = []
    else:
        name = row_name(table, cursor.store_id, lake.export_name) if tells_stores_apart(table) else None
        marks = row_marks(table, lake.columns, name, log.offset_min, until, log.segments.segment_size)
    marks = [mark for mark in marks if mark.commit_log_offset < until]
    return Source(cursor, marks, found is not None, compare_marks(log.segments, log.find_end(), marks))


def mixed_exports(table: LakeTable) -> list[tuple[str, str]]:
    """Return the (store id, name) of each export in a lake whose rows cannot be attributed to one of them; else none.

    An older reput accepted several exports in one lake, before lakes had the column ``store``.
    """
    if tells_stores_apart(table):
        return []
    exports = {(cursor.store_id, name) for name, cursors in all_sources(table).items() for cursor in cursors}
    return sorted(exports) if len(exports) > 1 else []


def find_cut(lake: Lake, source: Source, log: LogTable) -> Cut | None:
    """Return where the log's history departs from the lake's, None if the log continues the lake."""
    cursor = msgspec.structs.replace(source.cursor, store_id=lake.epochs.store_id)
    parting = find_parting(lake.epochs, cursor, source.compared, log.offset_min)
    if parting is not None:
        return Cut(parting)
    return None if source.compared.ahead is None else Cut(log.find_end(), log_ends=True)


def take_out(
    lake: Lake,
    table: LakeTable,
    log: LogTable,
    cut: Cut,
    source: Source,
    retired: Sequence[Cursor] = (),
    *,
    accepted: bool = False,
) -> None:
    """Delete the rows from *cut* on from the lake, and retire the cursors in *retired*.

    Raises:
        StoreError: an operator must accept that first.
    """
    at = cut.commit_log_offset
    lake.refuse_cut(at)
    store = lake.rows_of(table)
    rows = count_rows(table, lake.columns, store, at)
    rows_kept = count_rows(table, lake.columns, store, 0, at)
    numbers = f"rows_to_take_out={rows} rows_to_keep={rows_kept} lake={lake.location.address}"
    place = f"={at} lake_until={source.cursor.commit_log_offset} lake_epoch={source.cursor.epoch} "
    place += f"epoch={lake.epochs.epoch} offset_min={log.offset_min}"
    mixed = mixed_exports(table) if rows else []
    if mixed:
        stores, names = (",".join(part) for part in zip(*mixed, strict=True))
        raise StoreError(
            f"the lake has rows of several exports, and cannot tell which export wrote them: cut_at{place} "
            f"lake_store_id={stores} name={names} {numbers}",
            "Export each store into its own folder.",
        )
    if rows and not accepted and (cut.log_ends or not has_common(lake, table, log, at, source.compared)):
        what = "the log ends before what the lake holds: log_end" if cut.log_ends else f"{CUT_BELOW}: cut_at"
        raise StoreError(f"{what}{place} {numbers} {source.compared}", accept_advice(lake, table, log))
    logger.warning("%s, and these rows are taken out: cut_at%s %s", CUT_BELOW, place, numbers)
    cursor = Cursor(lake.epochs.store_id, lake.epochs.epoch, at, 0)
    lake.truncate(cursor, marks_below(lake, table, log, at, source.marks), retired)


def marks_below(lake: Lake, table: LakeTable, log: LogTable, cut: int, marks: Sequence[LogMark]) -> list[LogMark]:
    """Return the marks of the rows that stay in the lake below *cut*.

    The mark of the segment that contains the cut usually lies after it, so the last row before the cut replaces it.
    Without that, a lake of one segment would have no mark left to recognise its log by.
    """
    if mixed_exports(table):
        return []
    kept = [mark for mark in marks if mark.end <= cut]
    begin = kept[-1].end if kept else 0
    segment_size = log.segments.segment_size
    return joined_marks(
        kept, row_marks(table, lake.columns, lake.rows_of(table), begin, cut, segment_size), segment_size
    )


def accept_advice(lake: Lake, table: LakeTable, log: LogTable) -> str:
    """Return the advice for rows whose deletion needs the operator's consent, with the command to type."""
    words = ["reput", "export", str(log.store_directory), *lake.export_words(table), "--accept-truncation"]
    command = shlex.join(words)
    return (
        "Find out what became of the log. Export into another folder to keep these rows, or take them out and continue "
        f"with the log: {command}"
    )


def has_common(lake: Lake, table: LakeTable, log: LogTable, cut: int, compared: MarkComparison) -> bool:
    """Return whether lake and log share a record below *cut*."""
    if compared.held is not None and compared.held_end <= cut:
        return True
    marks = row_marks(table, lake.columns, lake.rows_of(table), log.offset_min, cut, log.segments.segment_size)
    return compare_marks(log.segments, log.find_end(), marks).held is not None
