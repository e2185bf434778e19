"""One connection to a master's HA port, by itself."""

from __future__ import annotations

import os

from reput.replication.master_stream import BUFFER_SIZE, MasterStream


def test_bytes_that_were_yielded_stay_as_they_are(fake_master):
    """Whoever takes them may keep them until they are on disk: they are not copied on the way."""
    fake_master.segment_size = 2 * BUFFER_SIZE
    fake_master.log = os.urandom(3 * BUFFER_SIZE)
    with MasterStream(fake_master.address, 1, fake_master.segment_size) as stream:
        pieces, size = [], 1
        for piece in stream.pieces(60, lambda: None):
            pieces.append(piece)
            size += len(piece)
            if size == fake_master.end:
                break
    assert b"".join(pieces) == fake_master.log[1:]
