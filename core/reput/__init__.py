"""reput: a durable message log in RocketMQ's store format. A plugin builds each view of it, in a process of its own.

    with reput.open("store") as store:
        result = store.put(reput.Message("orders", b"...", tags="paid", keys=["order-17"]))
        store.wait_for("consume_queue", result.next_commit_log_offset, timeout=1.0)
        found = store.get("orders", queue_id=0, queue_offset=0, count_max=32)

The names of this module are the public interface, and so are `parse`, `SqlFilter` and the two errors of `reput.filter`.
Everything else may change at any time. docs/versions.md says what a version promises.
"""

from __future__ import annotations

from reput.lazy_exports import lazy_exports

__version__ = "0.1.0"

# `typing` is not imported: it takes as long to load as everything else here, and Ctrl-C may come meanwhile.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from reput import filter as filter
    from reput.client.administration import BrokerReplication as BrokerReplication
    from reput.client.administration import BrokerRow as BrokerRow
    from reput.client.administration import ClusterAdministration as ClusterAdministration
    from reput.client.administration import ConsumerConnection as ConsumerConnection
    from reput.client.administration import ReplicaRow as ReplicaRow
    from reput.client.client import Client as Client
    from reput.client.client import Producer as Producer
    from reput.client.client import connect as connect
    from reput.client.remote_consumer import RemoteConsumer as RemoteConsumer
    from reput.client.transactions import Transactions as Transactions
    from reput.consume.administration.administration import Administration as Administration
    from reput.consume.administration.administration import QueueStats as QueueStats
    from reput.consume.administration.dead_letters import GroupDeadLetters as GroupDeadLetters
    from reput.consume.administration.dead_letters import RedrivenLetter as RedrivenLetter
    from reput.consume.administration.stored_queues import GroupProgress as GroupProgress
    from reput.consume.delivery.schedule_service import DelayLevelRow as DelayLevelRow
    from reput.consume.delivery.transaction_messages import HalfMessage as HalfMessage
    from reput.consume.delivery.transaction_messages import TransactionState as TransactionState
    from reput.consume.delivery.transaction_service import TransactionService as TransactionService
    from reput.consume.groups.consumer import Consumer as Consumer
    from reput.consume.registry.statistics import GroupRow as GroupRow
    from reput.consume.registry.statistics import StoreStatistics as StoreStatistics
    from reput.consume.registry.statistics import TopicRow as TopicRow
    from reput.embedded.opening import aopen as aopen
    from reput.embedded.opening import open as open
    from reput.embedded.read_only_store import ReadOnlyStore as ReadOnlyStore
    from reput.embedded.store import Store as Store
    from reput.errors import BrokerError as BrokerError
    from reput.errors import ConfigError as ConfigError
    from reput.errors import DamagedStore as DamagedStore
    from reput.errors import DispatcherError as DispatcherError
    from reput.errors import FollowError as FollowError
    from reput.errors import GroupUnreachable as GroupUnreachable
    from reput.errors import MessageIllegal as MessageIllegal
    from reput.errors import NotAStore as NotAStore
    from reput.errors import OffsetOutOfRange as OffsetOutOfRange
    from reput.errors import ReputError as ReputError
    from reput.errors import RequestRefused as RequestRefused
    from reput.errors import RingClosed as RingClosed
    from reput.errors import RingError as RingError
    from reput.errors import RingLapped as RingLapped
    from reput.errors import StoreBusy as StoreBusy
    from reput.errors import StoreClosed as StoreClosed
    from reput.errors import StoreError as StoreError
    from reput.errors import StoreFull as StoreFull
    from reput.errors import StoreLocked as StoreLocked
    from reput.errors import StoreReadOnly as StoreReadOnly
    from reput.errors import WaitTimeout as WaitTimeout
    from reput.metrics.prometheus import prometheus as prometheus
    from reput.process.control.control_messages import RebuiltView as RebuiltView
    from reput.process.control.dispatcher_row import DispatcherRow as DispatcherRow
    from reput.process.control.group_status import GroupStatus as GroupStatus
    from reput.process.control.group_status import WriterRow as WriterRow
    from reput.process.owner.debugging import DebuggedDispatcher as DebuggedDispatcher
    from reput.process.owner.debugging import debug as debug
    from reput.remoting.response_code import ResponseCode as ResponseCode
    from reput.replication.follower import FollowState as FollowState
    from reput.replication.follower import FollowStatus as FollowStatus
    from reput.replication.following import FollowingStore as FollowingStore
    from reput.replication.following import afollow as afollow
    from reput.replication.following import follow as follow
    from reput.settings import Settings as Settings
    from reput.store.config.subscription_group_manager import SubscriptionGroupConfig as SubscriptionGroupConfig
    from reput.store.config.topic_config_manager import TopicConfig as TopicConfig
    from reput.store.log.force_times import ForceTotals as ForceTotals
    from reput.store.reader.results import GetMessageResult as GetMessageResult
    from reput.store.reader.results import GetMessageStatus as GetMessageStatus
    from reput.store.record.message import Message as Message
    from reput.store.record.message import PutMessageResult as PutMessageResult
    from reput.store.record.message import PutMessageStatus as PutMessageStatus
    from reput.store.recovery.found_damage import DamageRow as DamageRow
    from reput.store.retention.retention_plan import KeptSegment as KeptSegment
    from reput.store.retention.retention_plan import SegmentFate as SegmentFate
    from reput.store.state.lease_row import LeaseRow as LeaseRow
    from reput.store.writer.put_statistics import PutTotals as PutTotals
    from reput.worker.worker import Worker as Worker
    from reput.worker.worker import WorkerStatistics as WorkerStatistics
    from reput_hooks import Record as Record
else:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
