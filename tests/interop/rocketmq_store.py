"""RocketMQStore: a directory opened by RocketMQ's own store, in a Java process, with questions over pipes."""

from __future__ import annotations

import base64
import ipaddress
import json
import select
import subprocess
from pathlib import Path
from typing import Any, Self

from reput.settings import Settings
from reput_hooks import Record

__all__ = ["RocketMQError", "RocketMQStore", "java_settings", "record_of"]

ANSWER_SECONDS_MAX = 120
QUERY_COUNT_MAX = 64
TIME_MAX = 2**62


class RocketMQError(Exception):
    """RocketMQ failed; the text is its own."""


def java_settings(settings: Settings) -> dict[str, object]:
    """Return the settings that RocketMQ must share with reput to find the same files."""
    return {
        "mappedFileSizeCommitLog": settings.mapped_file_size_commit_log,
        "mappedFileSizeConsumeQueue": settings.mapped_file_size_consume_queue,
        "maxHashSlotNum": settings.max_hash_slot_num,
        "maxIndexNum": settings.max_index_num,
        # After a kill RocketMQ 5.5 reads back ten segments, which hold only a handful of messages here.
        "commitLogRecoverMaxNum": 2**31 - 1,
    }


class RocketMQStore:
    """Opened by the constructor; ends by `shutdown`, `kill`, or at the end of a ``with``, which kills it."""

    def __init__(self, command: list[str], directory: Path, settings: dict[str, object]) -> None:
        """Load and start the store, and wait until everything in its log is dispatched.

        Raises:
            RocketMQError: RocketMQ refused.
        """
        self.directory = directory
        self.errors = directory.with_name(f"{directory.name}.stderr")
        arguments = [f"{name}={json.dumps(value).strip(chr(34))}" for name, value in settings.items()]
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [*command, str(directory), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )
        try:
            self.answer()
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """The process that holds the store."""
        return self.process.pid

    def ask(self, do: str, **fields: object) -> dict[str, Any]:
        """Ask one question and return the answer.

        Raises:
            RocketMQError: RocketMQ threw, or died.
        """
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **fields}).encode() + b"\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """Wait for one line."""
        assert self.process.stdout is not None
        # One answer per question, so the buffer is empty while the pipe is.
        ready, _, _ = select.select([self.process.stdout], [], [], ANSWER_SECONDS_MAX)
        line = self.process.stdout.readline() if ready else b""
        answer: dict[str, Any] = json.loads(line) if line else {"error": "no answer"}
        if "error" in answer:
            raise RocketMQError(f"{answer['error']}\n{self.errors.read_text('utf-8', 'replace')[-4000:]}")
        return answer

    def records(self) -> list[Record]:
        """Return every record of the log, in order."""
        return [record_of(line) for line in self.ask("records")["records"]]

    def queues(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Return (topic, queue id) → (min, max queue offset) of every queue that is not empty."""
        queues = self.ask("queues")["queues"]
        return {
            (queue["topic"], queue["queueId"]): (queue["min"], queue["max"]) for queue in queues if queue["max"] > 0
        }

    def read_queue(self, topic: str, queue_id: int, queue_offset: int = 0) -> list[Record]:
        """Return all messages of a queue from *queue_offset* on, as a consumer reads them."""
        records: list[Record] = []
        while True:
            answer = self.ask("get", topic=topic, queueId=queue_id, queueOffset=queue_offset, count=32)
            if answer["status"] not in ("FOUND", "OFFSET_FOUND_NULL"):
                assert answer["status"] == "OFFSET_OVERFLOW_ONE", answer
                return records
            records += [record_of(line) for line in answer["records"]]
            assert answer["nextBeginOffset"] > queue_offset, answer
            queue_offset = answer["nextBeginOffset"]

    def query(self, topic: str, key: str) -> list[Record]:
        """Return the messages of one key, of any time."""
        answer = self.ask("query", topic=topic, key=key, count=QUERY_COUNT_MAX, begin=0, end=TIME_MAX)
        return [record_of(line) for line in answer["records"]]

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int) -> int:
        """Return the queue offset for a store time."""
        return int(self.ask("offset_by_time", topic=topic, queueId=queue_id, timestamp=timestamp)["queueOffset"])

    def set_clock(self, ms: int) -> None:
        """Store all further records with this time."""
        self.ask("clock", ms=ms)

    def shutdown(self) -> None:
        """Close the store like a broker that is stopped."""
        self.ask("shutdown")
        self.end()

    def kill(self) -> None:
        """End the process like ``kill -9``."""
        self.process.kill()
        self.end()

    def end(self) -> None:
        """Wait for the process and close its pipes."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(ANSWER_SECONDS_MAX)


def record_of(line: dict[str, Any]) -> Record:
    """Return a record like one of reput's decoder, from RocketMQ's decoder, which lacks magic codes."""
    return Record(
        commit_log_offset=line["physicalOffset"],
        record_size=line["size"],
        topic=line["topic"],
        queue_id=line["queueId"],
        queue_offset=line["queueOffset"],
        flag=line["flag"],
        sys_flag=line["sysFlag"],
        magic_code=0,
        born_timestamp=line["bornTimestamp"],
        born_host=short_host(line["bornHost"]),
        store_timestamp=line["storeTimestamp"],
        store_host=short_host(line["storeHost"]),
        reconsume_times=line["reconsumeTimes"],
        prepared_transaction_offset=line["preparedTransactionOffset"],
        body_crc=line["bodyCRC"],
        body=base64.b64decode(line["body"]),
        properties=line["properties"],
        message_id=line["msgId"],
    )


def short_host(host: str) -> str:
    """Return ``[::1]:5000`` for Java's ``[0:0:0:0:0:0:0:1]:5000``."""
    address, _, port = host.rpartition(":")
    return f"[{ipaddress.ip_address(address[1:-1])}]:{port}" if address.startswith("[") else host
