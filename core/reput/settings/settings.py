"""Settings: everything that can be configured, as one frozen struct."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from reput.errors import ConfigError

__all__ = ["SEGMENT_SIZE_MAX", "SEGMENT_SIZE_MIN", "Settings"]

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

CONSUME_QUEUE_UNIT_SIZE = 20
SEGMENT_SIZE_MIN, SEGMENT_SIZE_MAX = 1024, INT_MAX

Size: TypeAlias = Annotated[int, Meta(ge=1, le=INT_MAX)]  # bytes
Count: TypeAlias = Annotated[int, Meta(ge=1, le=INT_MAX)]
CountOrNone: TypeAlias = Annotated[int, Meta(ge=0, le=INT_MAX)]
Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=INT_MAX)]
Interval: TypeAlias = Annotated[int, Meta(ge=1, le=INT_MAX)]  # ms
Percent: TypeAlias = Annotated[int, Meta(ge=0, le=100)]
Port: TypeAlias = Annotated[int, Meta(ge=0, le=65535)]

DISPATCHER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
DELAY_LEVELS = re.compile(r"\s*[0-9]+[smhd](\s+[0-9]+[smhd])*\s*", re.ASCII)
DELETE_WHEN = re.compile(r"([01]?[0-9]|2[0-3])(;([01]?[0-9]|2[0-3]))*;?", re.ASCII)
RING_SIZE_MIN = 1 << 16
RING_SIZE_MAX = 1 << 30


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one store. docs/settings.md describes each, with its unit.

    The constructor checks only relations between fields and text syntax; `reput.open` also checks types and bounds.
    Names and defaults are RocketMQ's (MessageStoreConfig, BrokerConfig), including its spelling mistakes, up to the
    heading "reput's own". Sizes are bytes, times milliseconds, ratios percent, unless a comment says otherwise.

    Raises:
        ConfigError: two fields contradict each other, or a text violates the syntax of its field.
    """

    # Files of the log and of its views.
    mapped_file_size_commit_log: Annotated[int, Meta(ge=SEGMENT_SIZE_MIN, le=SEGMENT_SIZE_MAX)] = 1 << 30
    mapped_file_size_consume_queue: Annotated[int, Meta(ge=CONSUME_QUEUE_UNIT_SIZE, le=INT_MAX)] = 300_000 * 20
    mapped_file_size_consume_queue_ext: Annotated[int, Meta(ge=64, le=INT_MAX)] = 48 << 20
    mapper_file_size_batch_consume_queue: Size = 300_000 * 46
    max_hash_slot_num: Count = 5_000_000
    max_index_num: Annotated[int, Meta(ge=2, le=INT_MAX)] = 20_000_000  # one entry is never used
    message_index_enable: bool = True
    enable_consume_queue_ext: bool = False
    bit_map_length_consume_queue_ext: Annotated[int, Meta(ge=1, le=32767)] = 64

    # Limits of messages and topics.
    max_message_size: Size = 4 << 20
    auto_message_version_on_topic_len: bool = True
    enabled_append_prop_crc: bool = False
    force_verify_prop_crc: bool = False
    enable_lmq: bool = False
    enable_multi_dispatch: bool = False
    max_lmq_consume_queue_num: Count = 20_000
    message_delay_level: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    os_page_cache_busy_time_out_mills: Milliseconds = 1_000

    # Forcing to disk.
    flush_disk_type: Literal["ASYNC_FLUSH", "SYNC_FLUSH"] = "ASYNC_FLUSH"
    flush_commit_log_timed: bool = True
    flush_interval_commit_log: Interval = 500
    flush_commit_log_least_pages: CountOrNone = 4
    flush_commit_log_thorough_interval: Milliseconds = 10_000
    sync_flush_timeout: Interval = 5_000
    flush_interval_consume_queue: Interval = 1_000
    flush_consume_queue_least_pages: CountOrNone = 2
    flush_consume_queue_thorough_interval: Milliseconds = 60_000
    transient_store_pool_enable: bool = False
    transient_store_pool_size: Count = 5
    fast_fail_if_no_buffer_in_store_pool: bool = False
    commit_interval_commit_log: Interval = 200
    commit_commit_log_least_pages: CountOrNone = 4
    commit_commit_log_thorough_interval: Milliseconds = 200
    warm_maped_file_enable: bool = False
    flush_least_pages_when_warm_maped_file: CountOrNone = 4_096

    # Recovery.
    check_crc_on_recover: bool = True

    # Reading.
    max_msgs_num_batch: Count = 64
    default_query_max_num: Count = 32
    max_transfer_bytes_on_message_in_memory: Size = 262_144
    max_transfer_count_on_message_in_memory: Count = 32
    max_transfer_bytes_on_message_in_disk: Size = 65_536
    max_transfer_count_on_message_in_disk: Count = 8
    access_message_in_memory_max_ratio: Percent = 40
    max_filter_message_size: Size = 16_000

    # Retention.
    file_reserved_time: CountOrNone = 72  # hours
    delete_when: str = "04"  # hours of the day, separated by semicolons
    disk_max_used_space_ratio: Percent = 75
    disk_space_clean_forcibly_ratio: Percent = 85
    disk_space_warning_level_ratio: Percent = 90
    clean_file_forcibly_enable: bool = True
    clean_resource_interval: Interval = 10_000
    delete_commit_log_files_interval: Milliseconds = 100
    delete_consume_queue_files_interval: Milliseconds = 100
    delete_file_batch_max: Count = 10
    destroy_maped_file_interval_forcibly: Milliseconds = 120_000
    redelete_hanged_file_interval: Milliseconds = 120_000

    # The broker's identity and permissions.
    broker_cluster_name: str = "DefaultCluster"
    broker_name: str = "reput"  # RocketMQ: the host's name
    broker_id: Annotated[int, Meta(ge=0, le=LONG_MAX)] = 0
    broker_ip1: str = "127.0.0.1"  # RocketMQ: an address of the host's
    listen_port: Port = 10_911
    broker_permission: Annotated[int, Meta(ge=0, le=15)] = 6  # 4 read, 2 write
    namesrv_addr: str = ""
    auto_create_topic_enable: bool = True
    auto_create_subscription_group: bool = True
    default_topic_queue_nums: Count = 8
    reject_transaction_message: bool = False

    # Replication.
    broker_role: Literal["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"] = "ASYNC_MASTER"
    ha_listen_port: Annotated[int, Meta(ge=0, le=65_535)] = 0  # 0: beside listen_port; RocketMQ: 10912
    ha_send_heartbeat_interval: Interval = 5_000
    ha_housekeeping_interval: Interval = 20_000
    ha_transfer_batch_size: Annotated[int, Meta(ge=1, le=4_194_292)] = 32_768  # of a follower that keeps up
    ha_flow_control_enable: bool = False
    max_ha_transfer_byte_in_second: Count = 104_857_600  # to one follower
    ha_slave_fallbehind_max: Annotated[int, Meta(ge=0, le=LONG_MAX)] = 268_435_456  # 5.x: haMaxGapNotInSync
    in_sync_replicas: Count = 2  # with SYNC_MASTER, copies of a message, this one included; RocketMQ 5: 1
    slave_timeout: Interval = 3_000

    # The broker: encryption and accounts. Relative paths start at the broker's working directory.
    tls_server_mode: Literal["disabled", "permissive", "enforcing"] = "permissive"  # without a certificate: disabled
    tls_server_cert_path: str = ""  # certificates in PEM, the broker's own first
    tls_server_key_path: str = ""  # its key, PKCS#8 in PEM
    tls_server_key_password: str = ""
    tls_server_need_client_auth: Literal["none", "optional", "require"] = "none"
    tls_server_trust_cert_path: str = ""  # of the authorities that sign clients' certificates
    acl_enable: bool = False
    authentication_enabled: bool = False
    authorization_enabled: bool = False

    # Consuming.
    long_polling_enable: bool = True
    short_polling_time_mills: Milliseconds = 1_000
    flush_consumer_offset_interval: Interval = 5_000
    flush_delay_offset_interval: Interval = 10_000
    notify_consumer_ids_changed_enable: bool = True
    enable_property_filter: bool = False
    enable_calc_filter_bit_map: bool = False
    filter_support_retry: bool = False
    expect_consumer_num_use_filter: Count = 32
    max_error_rate_of_bloom_filter: Annotated[int, Meta(ge=1, le=99)] = 20
    filter_data_clean_time_span: Annotated[int, Meta(ge=0, le=LONG_MAX)] = 86_400_000
    transaction_time_out: Annotated[int, Meta(ge=0, le=LONG_MAX)] = 6_000
    transaction_check_max: CountOrNone = 15
    transaction_check_interval: Annotated[int, Meta(ge=1, le=LONG_MAX)] = 60_000  # RocketMQ 5: 30,000

    # reput's own: the writer.
    store_host: str = "127.0.0.1:10911"  # of every record; default: broker_ip1 and listen_port, if given
    born_host: str = "127.0.0.1:10911"  # of records sent by this program; default: the store host, if given
    open_transactions_max: Annotated[int, Meta(ge=1, le=LONG_MAX)] = 200_000  # half a kilobyte of memory each
    lag_max: Annotated[int, Meta(ge=0, le=LONG_MAX)] = 0  # bytes that the consume queue may lag; 0: no bound

    # reput's own: who may use the broker.
    acl_file: str = ""  # RocketMQ 4's accounts; default: config/plain_acl.yml in the store
    auth_file: str = ""  # users and policies; default: config/auth.yml in the store
    broker_quotas: str = ""  # rules separated by ;, such as: topic=orders messages=1000 bytes=10M
    broker_hooks: str = ""  # names of installed hooks, separated by commas

    # reput's own: fail-over.
    lease_time: Annotated[int, Meta(ge=1_000, le=INT_MAX)] = 10_000  # of a master's lease; etcd counts whole seconds

    # reput's own: the dispatchers.
    index_tags: bool = False  # index messages by tags, too, as RocketMQ does from 5.4.0 on
    ha_compression: Literal["none", "zstd"] = "none"  # of what a reput sends to this follower
    dispatchers: tuple[str, ...] = ("consume_queue", "index")
    dispatcher_options: dict[str, dict[str, object]] = {}
    dispatcher_plugins: dict[str, str] = {}  # of dispatchers whose name differs from their plugin's
    spark_options: dict[str, str] = {}  # "spark.master" and any other option of Spark
    ring_size: Annotated[int, Meta(ge=RING_SIZE_MIN, le=RING_SIZE_MAX)] = 8 << 20  # a power of two
    dispatcher_count_max: Annotated[int, Meta(ge=1, le=64)] = 32  # at a time, including views being rebuilt
    dispatcher_flush_interval: Interval = 1_000
    dispatcher_start_time_max: Interval = 60_000  # a longer phase is killed, unless the plugin calls `alive`
    dispatcher_dispatch_time_max: Interval = 60_000
    dispatcher_flush_time_max: Interval = 60_000
    dispatcher_expire_time_max: Interval = 60_000
    dispatcher_drain_time_max: Interval = 60_000  # how long a close waits for lagging dispatchers
    dispatcher_nice: Annotated[int, Meta(ge=0, le=19)] = 10  # of dispatchers other than the consume queue and the index
    dispatcher_memory_max: Annotated[int, Meta(ge=0, le=LONG_MAX)] = 0  # bytes of one such dispatcher; 0: no bound
    dispatcher_backoff_min: Annotated[int, Meta(ge=1, le=100)] = 50  # pause before the first restart
    dispatcher_backoff_max: Interval = 30_000
    dispatcher_restart_count_max: Count = 10  # restarts without progress before a dispatcher is FATAL
    dispatcher_log_format: Literal["text", "json"] = "text"  # of the group's log: plain text or JSON lines
    dispatcher_reserved_time: CountOrNone = 72  # hours beyond file_reserved_time that retention waits for dispatchers

    def __post_init__(self) -> None:
        # RocketMQ's getter rounds up in the same way, so an odd size in a broker's file means the same here.
        units = -(-self.mapped_file_size_consume_queue // CONSUME_QUEUE_UNIT_SIZE)
        msgspec.structs.force_setattr(self, "mapped_file_size_consume_queue", units * CONSUME_QUEUE_UNIT_SIZE)
        if self.index_file_size > INT_MAX:
            raise ConfigError(
                "an index file of these numbers exceeds 2 GiB: "
                f"max_hash_slot_num={self.max_hash_slot_num} max_index_num={self.max_index_num}"
            )
        if not DELAY_LEVELS.fullmatch(self.message_delay_level):
            raise ConfigError(
                "message_delay_level takes numbers with s, m, h or d, separated by spaces: "
                f"message_delay_level={self.message_delay_level!r}"
            )
        msgspec.structs.force_setattr(self, "message_delay_level", " ".join(self.message_delay_level.split()))
        if not DELETE_WHEN.fullmatch(self.delete_when):
            raise ConfigError(
                f"delete_when takes hours from 0 to 23, separated by semicolons: delete_when={self.delete_when!r}"
            )
        if self.ring_size & (self.ring_size - 1):
            raise ConfigError(f"ring_size takes a power of two: ring_size={self.ring_size}")
        if self.dispatcher_backoff_max < self.dispatcher_backoff_min:
            raise ConfigError(
                "dispatcher_backoff_max is below dispatcher_backoff_min: "
                f"dispatcher_backoff_max={self.dispatcher_backoff_max} "
                f"dispatcher_backoff_min={self.dispatcher_backoff_min}"
            )
        check_host("store_host", self.store_host)
        check_host("born_host", self.born_host)
        check_dispatchers(self.dispatchers)

    @property
    def has_accounts(self) -> bool:
        """Whether clients of the broker need accounts."""
        return self.acl_enable or self.authentication_enabled

    @property
    def index_file_size(self) -> int:
        """Bytes of one index file."""
        return 40 + 4 * self.max_hash_slot_num + 20 * self.max_index_num


def check_host(name: str, host: str) -> None:
    """Raise ConfigError unless *host* is ``address:port``, an IPv6 address in brackets."""
    address, colon, port = host.rpartition(":")
    bracketed = address.startswith("[") and address.endswith("]")
    try:
        parsed = ipaddress.ip_address(address[1:-1] if bracketed else address)
    except ValueError:
        parsed = None
    port_is_fine = colon and port.isascii() and port.isdigit() and int(port) <= 65_535
    if parsed is None or (parsed.version == 6) != bracketed or not port_is_fine:
        raise ConfigError(f"{name} takes ADDRESS:PORT, an IPv6 address in brackets: {name}={host!r}")


def check_dispatchers(names: tuple[str, ...]) -> None:
    """Raise ConfigError unless each name can be an entry point and a folder, and stands once."""
    for name in names:
        if not DISPATCHER_NAME.fullmatch(name):
            raise ConfigError(f"a dispatcher's name has letters, digits, _ and - only: dispatchers={name!r}")
    repeated = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if repeated:
        raise ConfigError(f"a dispatcher is named twice: dispatchers={repeated[0]!r}")
