"""follow_span: thousands of entries of a long chain of the index at once, with numpy; `index_chain` draws the chain."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from reput.store.index.index_layout import IndexHeader
from reput.store.index.index_sizes import ENTRY_DTYPE

__all__ = ["Followed", "follow_span"]


class Followed(NamedTuple):
    """The part of a chain in one run of entries.

    Attributes:
        offsets: commit-log offsets under the hash, newest first; None where times leave some out.
        previous, last_offset: the entry where the chain continues, and the commit-log offset of the last one followed.
        entry_count: of the chain.
        is_over: the next entries are older than the wanted time.
    """

    offsets: list[int | None]
    previous: int
    last_offset: int
    entry_count: int
    is_over: bool


def follow_span(
    data: bytes, first: int, slot_count: int, wanted: int, header: IndexHeader, last_offset: int, begin: int, end: int
) -> Followed | None:
    """Follow a chain through the entries in *data*, from number *first* on. The chain's next entry is the last of
    these. None: the chain is broken there."""
    entries = np.frombuffer(data, ENTRY_DTYPE)
    codes = entries["key_hash"].astype(np.int64)
    own = np.flatnonzero(codes % slot_count == wanted % slot_count)
    chain = entries[own]
    codes, offsets = codes[own], chain["commit_log_offset"].astype(np.int64)
    seconds, previous = chain["seconds"].astype(np.int64), chain["previous"].astype(np.int64)
    numbers = own + first
    if not len(own) or own[-1] != len(entries) - 1 or numbers[-1] >= header.index_count:
        return None
    is_chain = (previous[1:] == numbers[:-1]).all() and 0 <= previous[0] < first
    is_ascending = (offsets[1:] >= offsets[:-1]).all() and header.begin_offset <= offsets[0]
    is_within = offsets[-1] <= min(last_offset, header.end_offset) and (seconds >= 0).all() and (codes >= 0).all()
    if not (is_chain and is_ascending and is_within):
        return None
    timestamps = header.begin_timestamp + seconds * 1000
    too_old = np.flatnonzero(timestamps < begin)
    # The chain is followed down to the first entry that is too old.
    kept = slice(int(too_old[-1]) if len(too_old) else 0, None)
    under_hash = codes[kept] == wanted
    in_time = (timestamps[kept] >= begin) & (timestamps[kept] <= end)
    found: list[int | None] = [*offsets[kept][under_hash & in_time][::-1].tolist()]
    if (under_hash & ~in_time).any():
        found.insert(0, None)
    return Followed(found, int(previous[0]), int(offsets[0]), len(own), bool(len(too_old)))
