"""Recorded settings: those that decide what a store's bytes mean, kept with the store in ``reput/store.json``.

    "file_sizes": {"mapped_file_size_commit_log": 1073741824, …}
    "settings":   {"message_delay_level": [{"from": 0, "value": "1s 5s"}, {"from": 8192, "value": "1s 5s 1h"}], …}

The first writing records them. From then on every verb uses the recorded value, and refuses a different one unless the
caller names the setting to change. A value holds from a commit-log offset on, so that a change does not affect the
meaning of earlier bytes.

To record one more setting, add it to `MEANINGS`. A store without a value for it records the value in force at its next
opening for writing.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from reput.errors import ConfigError, StoreError
from reput.settings import LoadedSettings, Settings, load_settings
from reput.settings.spelling import setting_name
from reput.store.index.index_layout import index_paths
from reput.store.index.index_tags import shown_index_tags
from reput.store.log.segments import Segments
from reput.store.queue.consume_queue_builder import names_in, shown_queue_file_size
from reput.store.record.delay_level import DelayHistory
from reput.store.record.multi_dispatch import LMQ_PREFIX
from reput.store.record.record import CRC_NAME, decode_record
from reput.store.state.built_delay_levels import shown_delay_levels
from reput.store.state.identity import RecordedValue, StoreIdentity, read_identity

__all__ = [
    "FILE_SIZES",
    "MEANINGS",
    "building_settings",
    "changed_settings",
    "delay_history",
    "enters_tags",
    "load_store_settings",
    "meaning_of",
    "meaning_on_disk",
    "read_delay_history",
    "read_recorded",
    "recorded_values",
    "shown_sizes",
    "with_recorded",
]

WORD_SIZE = 4
# A larger size word belongs to no record, or to one that is not worth the memory.
FIRST_RECORD_SIZE_MAX = 16 << 20
FILE_SIZES = (
    "mapped_file_size_commit_log",
    "mapped_file_size_consume_queue",
    "mapped_file_size_consume_queue_ext",
    "max_hash_slot_num",
    "max_index_num",
)
MEANINGS = (
    # The delivery times of delayed messages, which the units of their queues hold.
    "message_delay_level",
    # Which queues a message is in, and which file holds the offsets of light queues' groups.
    "enable_lmq",
    "enable_multi_dispatch",
    # Whether records carry a CRC of their own.
    "enabled_append_prop_crc",
    # How many bits a filter has in the units of consume_queue_ext, and how they are found.
    "expect_consumer_num_use_filter",
    "max_error_rate_of_bloom_filter",
    # Whether messages are found by their tags.
    "index_tags",
)


def load_store_settings(
    store_directory: Path,
    config: Path | None = None,
    assignments: Sequence[str] = (),
    changes: Collection[str] = (),
    **settings: object,
) -> LoadedSettings:
    """Return the settings that hold for a store: `load_settings`, then the recorded values, then what the files show.

    Raises:
        ConfigError: as of `load_settings`.
        StoreError: as `read_identity`.
    """
    recorded = read_recorded(store_directory)
    return load_settings(
        config, assignments, recorded, changes, found=shown_meaning(store_directory, recorded), **settings
    )


def shown_meaning(store_directory: Path, recorded: Container[str]) -> dict[str, Any]:
    """Return the unrecorded settings that the bytes of a store reveal, with their values."""
    shown: dict[str, Any] = {}
    if "enable_lmq" not in recorded or "enable_multi_dispatch" not in recorded:
        has_light_queues = any(name.startswith(LMQ_PREFIX) for name in names_in(store_directory / "consumequeue"))
        if has_light_queues:
            shown |= {"enable_lmq": True, "enable_multi_dispatch": True}
    if "enabled_append_prop_crc" not in recorded and begins_with_crc(store_directory):
        shown["enabled_append_prop_crc"] = True
    if "message_delay_level" not in recorded and (levels := shown_delay_levels(store_directory)) is not None:
        shown["message_delay_level"] = levels
    return {name: value for name, value in shown.items() if name not in recorded}


def begins_with_crc(store_directory: Path) -> bool:
    """Tell whether the first record of a log carries a CRC of its own."""
    try:
        segments = Segments(store_directory / "commitlog")
        begin = segments.offset_min
        size = int.from_bytes(segments.read(begin, WORD_SIZE), "big")
        if not 0 < size <= FIRST_RECORD_SIZE_MAX:
            return False
        return CRC_NAME in decode_record(segments.read(begin, size)).properties
    except (StoreError, OSError):
        # There is no store, no record, or damage, which other callers report.
        return False


def read_recorded(store_directory: Path) -> dict[str, Any]:
    """Return the recorded settings of a store, by name; none of a store that reput never wrote.

    Raises:
        StoreError: as `read_identity`.
    """
    identity = read_identity(store_directory)
    return {} if identity is None else recorded_values(identity)


def recorded_values(identity: StoreIdentity) -> dict[str, Any]:
    """Return the settings that *identity* records, with the values that hold now."""
    return {**identity.file_sizes, **{name: values[-1].value for name, values in identity.settings.items() if values}}


def changed_settings(names: Iterable[str]) -> frozenset[str]:
    """Return the fields of `Settings` that *names* mean, in either spelling: their recorded values may change.

    Raises:
        ConfigError: a name is not a string, or not a recorded setting.
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ConfigError(f"change_settings must be a list of names: change_settings={names!r}")
    fields = []
    for name in names:
        field = setting_name(name) if isinstance(name, str) else None
        if field not in (*FILE_SIZES, *MEANINGS):
            raise ConfigError(
                f"this setting is not recorded with a store: change_settings={name} "
                f"recorded={','.join((*FILE_SIZES, *MEANINGS))}",
                "Give it like any other setting.",
            )
        fields.append(field)
    return frozenset(fields)


def meaning_of(settings: Settings) -> dict[str, Any]:
    """Return the settings that decide what bytes mean, by name."""
    return {name: getattr(settings, name) for name in (*FILE_SIZES, *MEANINGS)}


def meaning_on_disk(store_directory: Path, settings: Settings) -> dict[str, Any]:
    """Return the same for a store that is only read. Unrecorded settings are as the files show, or else as given."""
    identity = read_identity(store_directory)
    recorded = {} if identity is None else recorded_values(identity)
    unknown = [name for name in FILE_SIZES if name not in recorded]
    tags = {"index_tags": enters_tags(store_directory, settings, identity)}
    return meaning_of(settings) | tags | shown_sizes(store_directory, settings, unknown)


def enters_tags(store_directory: Path, settings: Settings, identity: StoreIdentity | None) -> bool:
    """Tell whether the index of a store gets tags: by configuration or record, or because RocketMQ has entered some.

    A newer RocketMQ may start entering tags in an older index; reput then continues to enter them.
    """
    if settings.index_tags:
        return True
    recorded = identity.settings.get("index_tags") if identity is not None else None
    begin = recorded[-1].begin if recorded else 0
    return bool(shown_index_tags(store_directory, settings.max_hash_slot_num, settings.max_index_num, begin))


def building_settings(store_directory: Path, settings: Settings) -> Settings:
    """Return *settings* as a view is built with them in another place: with tags, if the store's own index has them."""
    tags = enters_tags(store_directory, settings, read_identity(store_directory))
    return msgspec.structs.replace(settings, index_tags=tags)


def with_recorded(identity: StoreIdentity, settings: Settings, log_end: int) -> StoreIdentity:
    """Return *identity* with all settings recorded: new ones from the log's beginning on, changed ones from its end."""
    sizes = {name: getattr(settings, name) for name in FILE_SIZES}
    values = {name: history(identity.settings.get(name, []), getattr(settings, name), log_end) for name in MEANINGS}
    return msgspec.structs.replace(identity, file_sizes=sizes, settings={**identity.settings, **values})


def history(known: Sequence[RecordedValue], value: object, log_end: int) -> list[RecordedValue]:
    """Return the values of a setting that is *value* from *log_end* on, if it was not before.

    A value recorded beyond the end of a log that was cut since applies from that end on.
    """
    parts: list[RecordedValue] = []
    for part in (*known, RecordedValue(log_end if known else 0, value)):
        begin = min(part.begin, log_end)
        # Of two values without a record between them, the later one applies.
        if parts and parts[-1].begin == begin:
            parts.pop()
        if not parts or parts[-1].value != part.value:
            parts.append(RecordedValue(begin, part.value))
    return parts


def shown_sizes(store_directory: Path, settings: Settings, names: Collection[str] = FILE_SIZES) -> dict[str, int]:
    """Return those sizes of *names* that the files of a store show, by name.

    *settings*: what the index files are first compared with.
    """
    shown: dict[str, int | None] = {}
    if "mapped_file_size_commit_log" in names:
        shown["mapped_file_size_commit_log"] = Segments(store_directory / "commitlog").segment_size
    if "mapped_file_size_consume_queue" in names:
        shown["mapped_file_size_consume_queue"] = shown_queue_file_size(store_directory / "consumequeue")
    if "mapped_file_size_consume_queue_ext" in names:
        shown["mapped_file_size_consume_queue_ext"] = shown_queue_file_size(store_directory / "consumequeue_ext")
    of_index = {"max_hash_slot_num", "max_index_num"} & set(names)
    if of_index and (paths := index_paths(store_directory / "index")):
        from reput.store.index.index_sizes import IndexSizes, find_common_sizes

        found = find_common_sizes(paths, IndexSizes(settings.max_hash_slot_num, settings.max_index_num))
        if found is not None:
            shown["max_hash_slot_num"], shown["max_index_num"] = found
    return {name: size for name, size in shown.items() if size is not None}


def read_delay_history(store_directory: Path, message_delay_level: str) -> DelayHistory:
    """Return the delay levels of a store: those given, and before them the recorded earlier ones.

    Raises:
        StoreError: as `read_identity`.
    """
    return delay_history(read_identity(store_directory), message_delay_level)


def delay_history(identity: StoreIdentity | None, message_delay_level: str) -> DelayHistory:
    """Return the delay levels by commit-log offset; *message_delay_level* holds behind the last change."""
    recorded = identity.settings.get("message_delay_level", []) if identity is not None else []
    begin = recorded[-1].begin if recorded else 0
    former = [(part.begin, part.value) for part in recorded[:-1]]
    return DelayHistory([*former, (begin, message_delay_level)])
