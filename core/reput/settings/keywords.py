"""SettingKeywords: the settings as keyword arguments of `reput.open`, for editors and type checkers.

A test compares the names and types with `Settings`, which documents them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypedDict

__all__ = ["SettingKeywords"]


class SettingKeywords(TypedDict, total=False):
    """Every setting except the list of dispatchers, which is a separate argument; *spark*: options of Spark by name."""

    mapped_file_size_commit_log: int
    mapped_file_size_consume_queue: int
    mapped_file_size_consume_queue_ext: int
    mapper_file_size_batch_consume_queue: int
    max_hash_slot_num: int
    max_index_num: int
    message_index_enable: bool
    enable_consume_queue_ext: bool
    bit_map_length_consume_queue_ext: int
    max_message_size: int
    auto_message_version_on_topic_len: bool
    enabled_append_prop_crc: bool
    force_verify_prop_crc: bool
    enable_lmq: bool
    enable_multi_dispatch: bool
    max_lmq_consume_queue_num: int
    message_delay_level: str
    os_page_cache_busy_time_out_mills: int
    flush_disk_type: Literal["ASYNC_FLUSH", "SYNC_FLUSH"]
    flush_commit_log_timed: bool
    flush_interval_commit_log: int
    flush_commit_log_least_pages: int
    flush_commit_log_thorough_interval: int
    sync_flush_timeout: int
    flush_interval_consume_queue: int
    flush_consume_queue_least_pages: int
    flush_consume_queue_thorough_interval: int
    transient_store_pool_enable: bool
    transient_store_pool_size: int
    fast_fail_if_no_buffer_in_store_pool: bool
    commit_interval_commit_log: int
    commit_commit_log_least_pages: int
    commit_commit_log_thorough_interval: int
    warm_maped_file_enable: bool
    flush_least_pages_when_warm_maped_file: int
    check_crc_on_recover: bool
    max_msgs_num_batch: int
    default_query_max_num: int
    max_transfer_bytes_on_message_in_memory: int
    max_transfer_count_on_message_in_memory: int
    max_transfer_bytes_on_message_in_disk: int
    max_transfer_count_on_message_in_disk: int
    access_message_in_memory_max_ratio: int
    max_filter_message_size: int
    file_reserved_time: int
    delete_when: str
    disk_max_used_space_ratio: int
    disk_space_clean_forcibly_ratio: int
    disk_space_warning_level_ratio: int
    clean_file_forcibly_enable: bool
    clean_resource_interval: int
    delete_commit_log_files_interval: int
    delete_consume_queue_files_interval: int
    delete_file_batch_max: int
    destroy_maped_file_interval_forcibly: int
    redelete_hanged_file_interval: int
    broker_cluster_name: str
    broker_name: str
    broker_id: int
    broker_ip1: str
    listen_port: int
    broker_permission: int
    namesrv_addr: str
    auto_create_topic_enable: bool
    auto_create_subscription_group: bool
    default_topic_queue_nums: int
    reject_transaction_message: bool
    broker_role: Literal["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"]
    ha_listen_port: int
    ha_send_heartbeat_interval: int
    ha_housekeeping_interval: int
    ha_transfer_batch_size: int
    ha_flow_control_enable: bool
    max_ha_transfer_byte_in_second: int
    ha_slave_fallbehind_max: int
    in_sync_replicas: int
    slave_timeout: int
    tls_server_mode: Literal["disabled", "permissive", "enforcing"]
    tls_server_cert_path: str
    tls_server_key_path: str
    tls_server_key_password: str
    tls_server_need_client_auth: Literal["none", "optional", "require"]
    tls_server_trust_cert_path: str
    acl_enable: bool
    authentication_enabled: bool
    authorization_enabled: bool
    long_polling_enable: bool
    short_polling_time_mills: int
    flush_consumer_offset_interval: int
    flush_delay_offset_interval: int
    notify_consumer_ids_changed_enable: bool
    enable_property_filter: bool
    enable_calc_filter_bit_map: bool
    filter_support_retry: bool
    expect_consumer_num_use_filter: int
    max_error_rate_of_bloom_filter: int
    filter_data_clean_time_span: int
    transaction_time_out: int
    transaction_check_max: int
    transaction_check_interval: int
    store_host: str
    born_host: str
    open_transactions_max: int
    lag_max: int
    acl_file: str
    auth_file: str
    broker_quotas: str
    broker_hooks: str
    lease_time: int
    index_tags: bool
    ha_compression: Literal["none", "zstd"]
    ring_size: int
    dispatcher_count_max: int
    dispatcher_flush_interval: int
    dispatcher_start_time_max: int
    dispatcher_dispatch_time_max: int
    dispatcher_flush_time_max: int
    dispatcher_expire_time_max: int
    dispatcher_drain_time_max: int
    dispatcher_nice: int
    dispatcher_memory_max: int
    dispatcher_backoff_min: int
    dispatcher_backoff_max: int
    dispatcher_restart_count_max: int
    dispatcher_log_format: Literal["text", "json"]
    dispatcher_reserved_time: int
    spark: Mapping[str, str]
