"""One connection to a master's HA port, by itself."""

from __future__ import annotations

import os

from reput.replication.copied_records import MEMORY_SIZE
from reput.replication.ha_protocol import SCRATCH_SIZE
from reput.replication.master_stream import MasterStream


def test_the_bytes_of_a_log_come_in_order_through_memory_that_is_used_again(fake_master):
    """A piece is as it was sent until the next one is asked for."""
    fake_master.segment_size = 2 * MEMORY_SIZE
    fake_master.log = os.urandom(3 * SCRATCH_SIZE)
    received = b""
    with MasterStream(fake_master.address, 1, fake_master.segment_size) as stream:
        for piece in stream.pieces(60, lambda: None):
            received += piece
            if len(received) + 1 == fake_master.end:
                break
    assert received == fake_master.log[1:]
