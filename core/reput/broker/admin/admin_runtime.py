"""AdminRuntimeProcessor: answers GET_BROKER_RUNTIME_INFO with figures about the running broker.

Source: RocketMQ broker, AdminBrokerProcessor.prepareRuntimeInfo; store, StoreStatsService.getRuntimeInfo.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping

from reput.broker.admin.admin_bodies import json_response
from reput.broker.state.broker_statistics import BrokerStatistics
from reput.broker.state.connected_clients import VERSION_NAMES
from reput.embedded.store_engine import StoreEngine
from reput.errors import ReputError
from reput.remoting.connection import Connection
from reput.remoting.remoting_command import VERSION, RemotingCommand
from reput.remoting.remoting_server import WAITING_MAX, Processor
from reput.remoting.request_code import RequestCode
from reput.store.disk.shortages import tell_store_error

__all__ = ["AdminRuntimeProcessor"]

FOUND, MISSED, TRANSFERRED = 1, 2, 3
REQUEST_QUEUES = ("ack", "send", "pull", "litePull", "query")
GIB = 1 << 30


class AdminRuntimeProcessor:
    """Runs in threads, because it asks the file system."""

    def __init__(self, engine: StoreEngine, statistics: BrokerStatistics, waiting_count: Callable[[], int]) -> None:
        """*waiting_count* returns the number of requests that run in threads or wait for a thread."""
        self.engine = engine
        self.statistics = statistics
        self.waiting_count = waiting_count

    def processors(self) -> Mapping[int, Processor]:
        """Return the processor of each request code."""
        return {RequestCode.GET_BROKER_RUNTIME_INFO: Processor(self.runtime_info, in_thread=True)}

    def runtime_info(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer GET_BROKER_RUNTIME_INFO."""
        del request, connection
        table = {**self.of_broker(), **self.of_puts(), **self.of_pulls(), **self.of_log(), **self.of_requests()}
        return json_response({"table": dict(sorted(table.items()))})

    def of_broker(self) -> dict[str, str]:
        """Return version and start of the broker."""
        started = self.engine.started
        return {
            "bootTimestamp": str(started),
            "brokerActive": "true",
            "brokerVersion": str(VERSION),
            "brokerVersionDesc": VERSION_NAMES.get(VERSION, str(VERSION)),
            "runtime": duration(time.time_ns() // 1_000_000 - started),
        }

    def of_puts(self) -> dict[str, str]:
        """Return the figures of puts."""
        totals = self.engine.writer.put_totals()
        statistics = self.statistics
        distribution = " ".join(f"{name}:{count}" for name, count in totals.put_distribute_time.items())
        return {
            "msgPutTotalTodayMorning": str(statistics.put_before_today),
            "msgPutTotalTodayNow": str(totals.put_nums),
            "msgPutTotalYesterdayMorning": str(statistics.put_yesterday),
            "putMessageAverageSize": str(totals.put_size_average or 0.0),
            "putMessageDistributeTime": distribution,
            "putMessageEntireTimeMax": str(round(totals.put_entire_time_max_ms or 0)),
            "putMessageSizeTotal": str(totals.put_size),
            "putMessageTimesTotal": str(totals.put_nums),
            "putTps": rates(rate or 0.0 for rate in totals.put_tps.values()),
        }

    def of_pulls(self) -> dict[str, str]:
        """Return the figures of pulls."""
        statistics = self.statistics
        found, missed = statistics.total_tps(FOUND), statistics.total_tps(MISSED)
        transferred = rates(statistics.total_tps(TRANSFERRED))
        return {
            "getFoundTps": rates(found),
            "getMissTps": rates(missed),
            "getTotalTps": rates(sum(pair) for pair in zip(found, missed, strict=True)),
            # RocketMQ 4.9 misspells this name.
            "getTransferedTps": transferred,
            "getTransferredTps": transferred,
            "msgGetTotalTodayMorning": str(statistics.got_before_today),
            "msgGetTotalTodayNow": str(statistics.got_count()),
            "msgGetTotalYesterdayMorning": str(statistics.got_yesterday),
        }

    def of_log(self) -> dict[str, str]:
        """Return where the log begins and ends, and how full its disk is."""
        engine = self.engine
        writer = engine.writer
        directory = engine.directory / "commitlog"
        with tell_store_error(f"the disk of the log cannot be asked: store={engine.directory}"):
            status = os.statvfs(directory)
            used = writer.retention.used_percent() / 100
        whole, free = (blocks * status.f_frsize / GIB for blocks in (status.f_blocks, status.f_bfree))
        appended = writer.appended
        behind = max(appended - engine.readable_up_to("consume_queue"), 0)
        unforced = max(appended - writer.durable, 0)
        return {
            "commitLogDirCapacity": f"Total : {whole:.1f} GiB, Free : {free:.1f} GiB.",
            "commitLogDiskRatio": f"{used:.2f}",
            "commitLogMaxOffset": str(appended),
            "commitLogMinOffset": str(writer.commit_log_offset_min),
            "consumeQueueDiskRatio": f"{used:.2f}",
            "dispatchBehindBytes": str(behind),
            "earliestMessageTimeStamp": str(self.earliest()),
            "pageCacheLockTimeMills": "0",
            "remainHowManyDataToFlush": f"{unforced} B",
            "remainTransientStoreBufferNumbs": str(engine.settings.transient_store_pool_size),
            "timerCongestNum": "0",
            "timerDequeueTps": "0.0",
            "timerEnqueueTps": "0.0",
            "timerOffsetBehind": "0",
            "timerReadBehind": "0",
        }

    def earliest(self) -> int:
        """Return the store time of the first message; -1: there is none."""
        begin = self.engine.writer.commit_log_offset_min
        if begin >= self.engine.writer.appended:
            return -1
        try:
            with self.engine.read_lock:
                record = self.engine.reader.store.record_at(begin)
        except ReputError:
            # Retention has just removed the message, or it is damaged; damage is reported elsewhere.
            record = None
        return -1 if record is None else record.store_timestamp

    def of_requests(self) -> dict[str, str]:
        """Return how many requests wait. Sends and pulls are answered by the loop; queries wait for threads."""
        table = {}
        for name in REQUEST_QUEUES:
            table[f"{name}ThreadPoolQueueCapacity"] = str(WAITING_MAX)
            table[f"{name}ThreadPoolQueueHeadWaitTimeMills"] = "0"
            table[f"{name}ThreadPoolQueueSize"] = "0"
        # This request is one of them.
        table["queryThreadPoolQueueSize"] = str(max(self.waiting_count() - 1, 0))
        return table


def rates(values: Iterable[float]) -> str:
    """Return the rates of the last 10, 60 and 600 seconds as RocketMQ prints them."""
    return " ".join(str(round(value, 4)) for value in values)


def duration(milliseconds: int) -> str:
    """Return a duration as RocketMQ prints it."""
    minutes, seconds = divmod(milliseconds // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
