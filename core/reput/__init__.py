"""reput: a durable message log in RocketMQ's store format, every view of which is a plugin in a process of its own.

    with reput.open("store") as store:
        result = store.put(reput.Message("orders", b"...", tags="paid", keys=["order-17"]))
        store.wait_for("consume_queue", result.next_commit_log_offset, timeout=1.0)
        found = store.get("orders", queue_id=0, queue_offset=0, count_max=32)

Names are imported when they are first used, so that `import reput` stays light.
"""

from __future__ import annotations

# Not imported: `typing` takes as long to load as all the rest of this, and with a command a Ctrl-C may come meanwhile.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from reput.embedded.opening import open
    from reput.embedded.read_only_store import ReadOnlyStore
    from reput.embedded.store import Store
    from reput.errors import (
        ConfigError,
        DamagedStore,
        DispatcherError,
        MessageIllegal,
        NotAStore,
        ReputError,
        StoreError,
        StoreLocked,
    )
    from reput.process.owner.debugging import DebuggedDispatcher, debug
    from reput.settings import Settings
    from reput.store.reader.results import GetMessageResult, GetMessageStatus
    from reput.store.record.message import Message, PutMessageResult, PutMessageStatus
    from reput_hooks import Record

__version__ = "0.1.0"

# Where each public name lives.
HOMES = {
    "ConfigError": "reput.errors",
    "DamagedStore": "reput.errors",
    "DebuggedDispatcher": "reput.process.owner.debugging",
    "DispatcherError": "reput.errors",
    "GetMessageResult": "reput.store.reader.results",
    "GetMessageStatus": "reput.store.reader.results",
    "Message": "reput.store.record.message",
    "MessageIllegal": "reput.errors",
    "NotAStore": "reput.errors",
    "PutMessageResult": "reput.store.record.message",
    "PutMessageStatus": "reput.store.record.message",
    "ReadOnlyStore": "reput.embedded.read_only_store",
    "Record": "reput_hooks",
    "ReputError": "reput.errors",
    "Settings": "reput.settings",
    "Store": "reput.embedded.store",
    "StoreError": "reput.errors",
    "StoreLocked": "reput.errors",
    "debug": "reput.process.owner.debugging",
    "open": "reput.embedded.opening",
}

__all__ = [
    "ConfigError",
    "DamagedStore",
    "DebuggedDispatcher",
    "DispatcherError",
    "GetMessageResult",
    "GetMessageStatus",
    "Message",
    "MessageIllegal",
    "NotAStore",
    "PutMessageResult",
    "PutMessageStatus",
    "ReadOnlyStore",
    "Record",
    "ReputError",
    "Settings",
    "Store",
    "StoreError",
    "StoreLocked",
    "__version__",
    "debug",
    "open",
]


def __getattr__(name: str) -> Any:
    home = HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'reput' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *HOMES})
