"""LogWriter: a commit log of one segment and its frames, without the store's writer and locks."""

from __future__ import annotations

import os
from pathlib import Path

from reput.process.frames.frame_publisher import FramePublisher
from reput.store.disk.sealed_file import seal
from reput.store.record.properties import encode_properties
from reput.store.record.record import encode_host, encode_record
from reput.store.writer.publisher import AppendedRecords
from reput_hooks.dispatch import ROW

SEGMENT_SIZE = 1 << 22
HOST = encode_host("127.0.0.1", 10911)
STORE_TIMESTAMP = 1_700_000_000_000
STORE_ID = "0123456789abcdef" * 2


class LogWriter:
    """Writes records into *store_directory* and notifies *publisher*, once there is one."""

    def __init__(self, store_directory: Path) -> None:
        self.store_directory = store_directory
        log = store_directory / "commitlog"
        log.mkdir(parents=True)
        (store_directory / "reput").mkdir()
        self.descriptor = os.open(log / f"{0:020}", os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(self.descriptor, SEGMENT_SIZE)
        self.end = 0
        self.ordinal = 0
        self.offsets: list[int] = []
        self.publisher: FramePublisher | None = None

    def close(self) -> None:
        """Close the segment."""
        os.close(self.descriptor)

    def put(self, count: int = 1, topic: str = "orders", body: bytes = b"body", *, durable: bool = False) -> int:
        """Append *count* records as one frame and return the log's end."""
        begin = self.end
        rows, properties = [], encode_properties({"TAGS": "paid", "KEYS": "k"})
        for _ in range(count):
            record = encode_record(
                topic=topic.encode(),
                queue_id=0,
                body=body,
                properties=properties,
                flag=0,
                queue_offset=self.ordinal,
                commit_log_offset=self.end,
                sys_flag=0,
                born_timestamp=STORE_TIMESTAMP,
                born_host=HOST,
                store_timestamp=STORE_TIMESTAMP + self.ordinal,
                store_host=HOST,
            )
            os.pwrite(self.descriptor, record, self.end)
            timestamp = STORE_TIMESTAMP + self.ordinal
            rows.append(ROW.pack(self.end, self.ordinal, 7, timestamp, 0, len(record), 0, 0, 1, -1, 1, -1, -1))
            self.offsets.append(self.end)
            self.end += len(record)
            self.ordinal += 1
        if self.publisher is not None:
            self.publisher.publish(
                AppendedRecords(
                    begin,
                    self.end,
                    STORE_TIMESTAMP + self.ordinal - 1,
                    self.ordinal,
                    [(topic, 0)],
                    b"".join(rows),
                    b"k" * count,
                )
            )
            if durable:
                self.publisher.durable(self.end)
        return self.end

    def header(self) -> dict[str, int]:
        """Return the initial values of a ring."""
        return {
            "appended": self.end,
            "durable": self.end,
            "commit_log_offset_min": 0,
            "epoch": 1,
            "ordinal": self.ordinal,
        }

    def begin_epoch(self, *starts: int) -> None:
        """Begin epochs of the store at these offsets, after the first one."""
        from reput.store.state.epochs import Epoch, Epochs

        history = [Epoch(1, 0, 0), *(Epoch(number + 2, start, 0) for number, start in enumerate(starts))]
        (self.store_directory / "reput" / "epochs").write_bytes(seal(Epochs(STORE_ID, history)))

    def accept_damage(self, begin: int, end: int) -> None:
        """Write the same record as `reput repair --accept`."""
        from reput.store.recovery.damage_list import DamagedRange, DamageList

        damage = DamageList([DamagedRange(begin, end, "test", accepted=True)])
        (self.store_directory / "reput" / "damage").write_bytes(seal(damage))
