"""open: checks the arguments, reads the settings from every source, and opens the store."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from reput.argument_checks import require_path, require_seconds
from reput.embedded.read_only_engine import ReadOnlyEngine
from reput.embedded.read_only_store import ReadOnlyStore
from reput.embedded.store import Store
from reput.embedded.store_engine import StoreEngine
from reput.embedded.views import Mode
from reput.errors import ConfigError
from reput.in_thread import opened_in_thread
from reput.process.control.configuration import Configuration
from reput.settings import Settings, given_settings
from reput.store.disk.shortages import tell_read_error, tell_store_error
from reput.store.state.recorded_settings import changed_settings, load_store_settings

if TYPE_CHECKING:
    from reput.embedded.open_keywords import OpenKeywords
    from reput.settings.keywords import SettingKeywords

__all__ = ["aopen", "open"]


@overload
def open(
    path: str | os.PathLike[str], *, read_only: Literal[False] = False, **keywords: Unpack[OpenKeywords]
) -> Store: ...


@overload
def open(
    path: str | os.PathLike[str], *, read_only: Literal[True], **keywords: Unpack[OpenKeywords]
) -> ReadOnlyStore: ...


@overload
def open(
    path: str | os.PathLike[str], *, read_only: bool, **keywords: Unpack[OpenKeywords]
) -> Store | ReadOnlyStore: ...


def open(
    path: str | os.PathLike[str],
    *,
    dispatchers: Sequence[str] | None = None,
    mode: Mode = "processes",
    read_only: bool = False,
    config: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    hooks: Sequence[object] = (),
    change_settings: Sequence[str] = (),
    lock_timeout: float | None = 0.0,
    **keywords: Unpack[SettingKeywords],
) -> Store | ReadOnlyStore:
    """Open the store in directory *path*. If the directory is absent or empty, a new store is made in it.

    This waits for the recovery of the log, but not until the dispatchers have caught up.

    Args:
        dispatchers: names of the dispatchers to run; None: as configured, by default ``consume_queue`` and ``index``.
        mode: "processes": each dispatcher runs in a process of its own; "inline": all run on one thread of this
            process, for tests and debuggers.
        read_only: only read the store, beside a running writer or without one. Not a byte of it changes.
        config: a TOML file, or a broker's own ``.properties`` file.
        hooks: modules or objects with ``reput_before_put`` or ``reput_after_put``; every put calls them.
        change_settings: names of recorded settings to change. Their new values, given as *keywords*, hold from the next
            put on. A value other than the recorded one is refused for a setting that is not named here.
        lock_timeout: seconds to wait while another process writes the store, for a deployment that starts the new
            process before the old one has ended; None: without limit.
        settings: a `reput.Settings`. Fields that differ from their defaults count as given, and win over *config*.
        keywords: RocketMQ's settings in snake case, one by one. They win over *settings*.

    Raises:
        ConfigError: a setting, a dispatcher or one of its options is wrong, or a setting differs from the recorded one.
        NotAStore: the directory holds something else; with *read_only*, also if it is absent or empty.
        StoreLocked: another process writes the store, and still did after *lock_timeout*.
        StoreReadOnly: this user may not write there, or the store follows a master.
        StoreFull: the disk has no space for the store's own files.
        DamagedStore: the log is damaged, and the damage was not accepted yet: see `reput repair`.
        DispatcherError: the processes of the dispatchers cannot be started.
        StoreError: the system refuses something else: a file cannot be read, or descriptors, threads or memory are
            short.
    """
    directory = require_path("path", path)
    if not os.fspath(path):
        raise ConfigError("path is empty: path=''", "Name the store's directory; the current one is called '.'.")
    if mode not in ("processes", "inline"):
        raise ConfigError(f"mode is unknown: mode={mode!r} known=processes,inline", "Give one of the known ones.")
    if isinstance(dispatchers, str) or not isinstance(dispatchers, (Iterable, NoneType)):
        raise ConfigError(f"dispatchers must be a list of names: dispatchers={dispatchers!r}")
    config_path = None if config is None else require_path("config", config)
    require_seconds("lock_timeout", lock_timeout)
    if not isinstance(hooks, Iterable):
        raise ConfigError(f"hooks must be a list of modules or objects: hooks={hooks!r}")
    if settings is not None and not isinstance(settings, Settings):
        raise ConfigError(f"settings must be a reput.Settings: settings={settings!r:.100}", "Give reput.Settings(...).")
    given: dict[str, Any] = {} if settings is None else given_settings(settings)
    given |= keywords
    if dispatchers is not None:
        given["dispatchers"] = tuple(dispatchers)
    changes = changed_settings(change_settings)
    if read_only and changes:
        raise ConfigError(
            f"a store opened for reading keeps its settings: change_settings={','.join(changes)}",
            "Leave change_settings out, or open the store for writing.",
        )
    read = partial(load_store_settings, directory, config_path, changes=changes, **given)
    with tell_read_error(f"the store cannot be opened: store={directory}"):
        loaded = read()
    if read_only:
        from reput.process.owner.stopped_status import as_run_last

        with tell_read_error(f"the store cannot be opened: store={directory}"):
            return ReadOnlyStore(ReadOnlyEngine(directory, as_run_last(directory, loaded)))
    configuration = Configuration(loaded.settings, lambda: read().settings)
    with tell_store_error(f"the store cannot be opened: store={directory}"):
        return Store(StoreEngine(directory, loaded.settings, mode, configuration, hooks, changes, lock_timeout))


@overload
async def aopen(
    path: str | os.PathLike[str], *, read_only: Literal[False] = False, **keywords: Unpack[OpenKeywords]
) -> Store: ...


@overload
async def aopen(
    path: str | os.PathLike[str], *, read_only: Literal[True], **keywords: Unpack[OpenKeywords]
) -> ReadOnlyStore: ...


@overload
async def aopen(
    path: str | os.PathLike[str], *, read_only: bool, **keywords: Unpack[OpenKeywords]
) -> Store | ReadOnlyStore: ...


async def aopen(
    path: str | os.PathLike[str], *, read_only: bool = False, **keywords: Unpack[OpenKeywords]
) -> Store | ReadOnlyStore:
    """Like `open`, with the same arguments, for a task: ``async with await reput.aopen("store") as store``."""

    def opening() -> Store | ReadOnlyStore:
        return open(path, read_only=read_only, **keywords)

    return await opened_in_thread(opening)
