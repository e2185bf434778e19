"""follow: opens a directory as the copy of a running master's log."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reput.access.credentials import credentials
from reput.argument_checks import require_path, require_seconds, require_whole
from reput.embedded.store import Store
from reput.embedded.views import Mode
from reput.errors import ConfigError, WaitTimeout
from reput.in_thread import in_thread, opened_in_thread
from reput.process.control.configuration import Configuration
from reput.replication.copy_preparation import Beginning, MasterAddress, PreparedCopy, prepare_copy
from reput.replication.follower import FollowStatus
from reput.replication.following_engine import FollowingEngine
from reput.store.disk.shortages import tell_store_error
from reput.store.state.recorded_settings import load_store_settings

if TYPE_CHECKING:
    from typing import Unpack

    from reput.replication.follow_keywords import FollowKeywords
    from reput.settings.keywords import SettingKeywords

__all__ = ["FollowingStore", "afollow", "follow", "open_copy", "parse_beginning"]


# RocketMQ's clients read from it when the master is gone or too busy (whichBrokerWhenConsumeSlowly).
SLAVE_ID = 1


class FollowingStore(Store):
    """A store that copies a master's log. It is read like any other; `put` refuses and says why. Open it with
    `reput.follow`."""

    def __init__(self, engine: FollowingEngine) -> None:
        """Take over *engine*. Programs call `reput.follow` instead."""
        super().__init__(engine)
        self._follower = engine.follower

    @property
    def following(self) -> FollowStatus:
        """Whether the store copies, how far it is, and why it waits or has stopped."""
        return self._follower.status()

    def wait_copied(self, commit_log_offset: int, timeout: float | None = None) -> None:
        """Wait until the master's log is copied up to *commit_log_offset*, and on disk.

        Raises:
            WaitTimeout: it was not copied within *timeout* seconds.
            FollowError: the store has stopped following.
            StoreClosed: the store is closed.
        """
        require_whole("commit_log_offset", commit_log_offset)
        require_seconds("timeout", timeout)
        if not self._follower.wait_copied(commit_log_offset, timeout):
            raise WaitTimeout(
                f"the log is not copied that far in time: commit_log_offset={commit_log_offset} "
                f"durable={self.durable} timeout={timeout:g} state={self._follower.state.value}"
            )

    async def await_copied(self, commit_log_offset: int, timeout: float | None = None) -> None:
        """Like `wait_copied`, for a task."""
        await in_thread(self.wait_copied, commit_log_offset, timeout)


def follow(
    master: str,
    path: str | os.PathLike[str],
    *,
    name_server: str | None = None,
    broker: str | None = None,
    begin: Beginning = "earliest",
    discard: bool = False,
    mode: Mode = "processes",
    config: str | os.PathLike[str] | None = None,
    lock_timeout: float | None = 0.0,
    tls: ssl.SSLContext | str | os.PathLike[str] | None = None,
    access_key: str | None = None,
    secret_key: str | None = None,
    **keywords: Unpack[SettingKeywords],
) -> FollowingStore:
    """Return a store in directory *path* that copies the log of a running master, RocketMQ's or reput's.

    A thread copies until the store is closed; `FollowingStore.following` says how far it is.

    The parameters that are not listed are those of `reput.open`; *tls*, *access_key* and *secret_key* are those of
    `reput.connect`.

    Args:
        master: ``host:port`` of its HA port (RocketMQ: the port of clients + 1); with *name_server*, a broker's name.
        name_server: ``host:port`` of a name server that knows the broker, or several, separated by semicolons. They are
            asked again at every connection: a master may come back elsewhere.
        broker: ``host:port`` where it answers requests, if that is not one port below the HA port.
        begin: for a new store: "earliest", "latest" (the master's last segment), or a commit-log offset, with
            whose segment the copy begins.
        discard: move records that the master lacks to ``reput/cut/`` in the store, and follow from there.

    Raises:
        BrokerError: the master does not answer.
        FollowError: the store is no copy of this master's log, or cannot become one.
        ConfigError, NotAStore, StoreLocked, StoreError: as of `reput.open`.
    """
    directory = require_path("path", path)
    if not isinstance(begin, int) and begin not in ("earliest", "latest"):
        raise ConfigError(f"begin is earliest, latest or a commit-log offset: begin={begin!r}")
    config_path = None if config is None else require_path("config", config)
    require_seconds("lock_timeout", lock_timeout)
    _, engine = open_copy(
        directory,
        MasterAddress(master, name_server, broker, credentials(tls, access_key, secret_key)),
        begin,
        discard=discard,
        mode=mode,
        config=config_path,
        lock_timeout=lock_timeout,
        **keywords,
    )
    return FollowingStore(engine)


async def afollow(master: str, path: str | os.PathLike[str], **keywords: Unpack[FollowKeywords]) -> FollowingStore:
    """Like `follow`, with the same arguments, for a task."""
    return await opened_in_thread(follow, master, path, **keywords)


def parse_beginning(text: str) -> Beginning:
    """Return where a new copy begins.

    Raises:
        ConfigError: the text is neither a word for it nor an offset.
    """
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"a copy begins at earliest, latest or a commit-log offset: from={text!r}")
    return int(text)


def open_copy(
    directory: Path,
    address: MasterAddress,
    begin: Beginning,
    *,
    discard: bool = False,
    mode: Mode = "processes",
    config: Path | None = None,
    assignments: Sequence[str] = (),
    lock_timeout: float | None = 0.0,
    **given: Any,
) -> tuple[PreparedCopy, FollowingEngine]:
    """Prepare and open a copy; arguments and errors as of `follow`."""
    with tell_store_error(f"the store cannot be opened: store={directory}"):
        prepared = prepare_copy(directory, address, begin, discard=discard)
        read = partial(load_store_settings, directory, config, assignments, **{**prepared.given, **given})
        loaded = read()
        configuration = Configuration(loaded.settings, lambda: read().settings)
        engine = FollowingEngine(
            directory,
            loaded.settings,
            prepared.master,
            mode,
            configuration,
            lock_timeout,
            address=address,
        )
    return prepared, engine


def open_slave(
    directory: Path,
    address: MasterAddress,
    *,
    config: Path | None,
    assignments: Sequence[str],
    lock_timeout: float | None,
    discard: bool = False,
    **given: Any,
) -> FollowingEngine:
    """Open a copy for a broker that answers clients while its master is away.

    It has the names of the master's broker, and the id 1 unless the settings name another that no master has.
    *discard*: as of `follow`.

    Errors as of `follow`.
    """
    with tell_store_error(f"the store cannot be opened: store={directory}"):
        prepared = prepare_copy(directory, address, discard=discard)
        names = {
            "broker_name": prepared.master.broker_name,
            "broker_cluster_name": prepared.master.cluster_name,
            "broker_role": "SLAVE",
        }
        read = partial(load_store_settings, directory, config, assignments, **{**prepared.given, **names, **given})
        loaded = read()
        if loaded.settings.broker_id == 0:
            loaded = read(broker_id=SLAVE_ID)
        configuration = Configuration(loaded.settings, lambda: read().settings)
        return FollowingEngine(
            directory,
            loaded.settings,
            prepared.master,
            configuration=configuration,
            lock_timeout=lock_timeout,
            address=address,
        )
