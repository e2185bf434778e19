"""serve: the broker's process. It opens the store, serves it until SIGTERM, and leaves it cleanly closed.

    keeper ── sockets, ServeOptions ──▶ serve ── Ready or Failed, by a socket ──▶ keeper

Source of the order at the end: RocketMQ broker, BrokerController.shutdown.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import secrets
import signal
import socket
import sys
import threading
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from reput.access.credentials import Credentials, credentials_of_environment
from reput.broker.serve_options import ROLE_ENDED, Failed, Ready, ServeOptions
from reput.embedded.store_engine import StoreEngine
from reput.errors import ReputError, StoreError
from reput.in_thread import in_thread
from reput.process.control.configuration import Configuration
from reput.remoting.remoting_server import CONNECTIONS_MAX
from reput.store.state.broker_place import BrokerPlace, remove_broker_place, write_broker_place
from reput.store.state.lease_mark import refuse_node
from reput.store.state.recorded_settings import load_store_settings

if TYPE_CHECKING:
    from reput.broker.broker import Broker
    from reput.metrics.metrics_listener import MetricsListener
    from reput.replication.lease_role import LeaseRole
    from reput.settings import Settings

__all__ = ["serve"]

# Each connection and each open file of the store needs a descriptor.
DESCRIPTORS_WANTED = 1 << 16
BROKER_MODULE = "reput.broker.broker"
STDOUT = 1
# A thread that answers an administrator holds the interpreter's lock at most so long while the loop waits for it.
# Python's own 5 ms, several times in a request, were most of what a client waits beside such a thread.
SWITCH_INTERVAL_S = 0.0005

logger = logging.getLogger(__name__)


def serve(options: ServeOptions, report: int) -> int:
    """Serve a store until SIGTERM; return the exit code. `Ready` or `Failed` is written to the descriptor *report*."""
    directory = Path(options.store)
    # Opening the store waits for the supervisor's process; the broker's modules are loaded meanwhile.
    loading = threading.Thread(target=import_module, args=(BROKER_MODULE,), name="reput-loading")
    loading.start()
    role: LeaseRole | None = None
    try:
        known = credentials_of_environment()
        if options.lease is None:
            engine = open_engine(directory, options, known)
        else:
            role = open_role(directory, options, known)
            engine = role.engine
    except ReputError as error:
        tell(report, Failed(type(error).__name__, str(error), error.advice))
        return 3
    loading.join()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(serve_engine(engine, options, report, known, role))


def connections_max() -> int:
    """Return how many connections the limit of descriptors allows; the rest is reserved for the store's files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return CONNECTIONS_MAX if soft == resource.RLIM_INFINITY else soft // 2


def loop_factory() -> Any:
    """Return the factory of the event loop: uvloop's if uvloop is installed, else None."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def open_engine(directory: Path, options: ServeOptions, known: Credentials) -> StoreEngine:
    """Return the open store.

    Raises:
        ReputError: the store cannot be opened.
    """
    config = None if options.config is None else Path(options.config)
    if options.follow is not None:
        from reput.replication.copy_preparation import MasterAddress
        from reput.replication.following import open_slave

        address = MasterAddress(options.follow, options.follow_name_server, options.follow_broker, known)
        return open_slave(
            directory,
            address,
            config=config,
            assignments=options.assignments,
            lock_timeout=options.lock_timeout,
            **options.given,
        )
    refuse_node(directory, "Add --lease with that name.")
    read = partial(load_settings, directory, options)
    settings = read()
    return StoreEngine(
        directory, settings, "processes", Configuration(settings, read), lock_timeout=options.lock_timeout
    )


def load_settings(directory: Path, options: ServeOptions, **given: Any) -> Settings:
    """Return the settings of the store.

    Raises:
        ReputError: they cannot be read.
    """
    config = None if options.config is None else Path(options.config)
    return load_store_settings(directory, config, options.assignments, **{**options.given, **given}).settings


def open_role(directory: Path, options: ServeOptions, known: Credentials) -> LeaseRole:
    """Return the store, open in the role that its lease gives to it.

    Raises:
        ReputError: the store cannot be opened.
    """
    from reput.lease.etcd_agreement import open_agreement
    from reput.replication.lease_role import MasterEngine, RoleOpener

    assert options.lease is not None
    assert options.ha is not None
    load = partial(load_settings, directory, options)

    def open_master(epoch: int, **given: Any) -> StoreEngine:
        settings = load(**given)
        configuration = Configuration(settings, partial(load, **given))
        return MasterEngine(directory, settings, configuration, options.lock_timeout, epoch)

    return RoleOpener(
        directory,
        open_agreement(options.lease, load().lease_time / 1000),
        options.broker,
        options.ha,
        load=load,
        open_master=open_master,
        config=None if options.config is None else Path(options.config),
        assignments=options.assignments,
        given=options.given,
        credentials=known,
        discard=options.discard,
        lock_timeout=options.lock_timeout,
    ).open(waits=not options.announces)


async def serve_engine(
    engine: StoreEngine, options: ServeOptions, report: int, known: Credentials, role: LeaseRole | None = None
) -> int:
    """Serve an open store until SIGTERM, or until its role ends, and close it; return the exit code."""
    from reput.broker.broker import Broker
    from reput.replication.ha_server import HaServer

    loop = asyncio.get_running_loop()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    stop = asyncio.Event()
    has_role = True

    def end_role() -> None:
        nonlocal has_role
        has_role = False
        loop.call_soon_threadsafe(stop.set)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    listeners = [socket.socket(fileno=descriptor) for descriptor in options.listeners]
    metrics_listener = None if options.metrics is None else listeners.pop()
    ha_server = None if options.ha is None else HaServer(engine, listeners.pop())
    try:
        broker = Broker(
            engine,
            options.broker,
            embeds_name_server=options.name_server is not None,
            name_servers=options.name_servers,
            connections_max=connections_max(),
            ha_server=ha_server,
            ha_address=options.ha,
            ha_allows_unsigned=options.ha_allows_unsigned,
            lease=None if role is None else role.held,
            credentials=known,
        )
    except ReputError as error:
        if role is not None:
            role.end()
        await in_thread(engine.close)
        tell(report, Failed(type(error).__name__, str(error), error.advice))
        return 3
    loop.add_signal_handler(signal.SIGHUP, broker.reload)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    place = BrokerPlace(f"reput-broker-{secrets.token_hex(16)}", os.getpid(), options.broker, options.name_server)
    local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    local.bind(f"\0{place.socket}")
    metrics = None if metrics_listener is None else begin_metrics(metrics_listener, broker)
    for listener in [*listeners, local]:
        await broker.listen(listener)
    if ha_server is not None:
        ha_server.start(broker.turn)
    write_broker_place(engine.directory, place)
    await broker.start()
    # All objects made so far live as long as the broker, so the garbage collector need not visit them again and again.
    gc.collect()
    gc.freeze()
    # Tell the keeper first: it gives up if the broker is killed before it was ready.
    tell(report, Ready(os.getpid()))
    if options.announces:
        # Printing blocks while stdout is a full pipe that no program reads; clients are served meanwhile.
        threading.Thread(target=announce, args=(options,), name="reput-ready", daemon=True).start()
    if role is not None:
        engine.writer.lease_row = role.row
        role.begin(end_role, discard=options.discard)
    await stop.wait()
    logger.info("the broker is stopping: store=%s has_role=%s", engine.directory, has_role)
    await (broker.drain() if has_role else broker.leave())
    await broker.close()
    if ha_server is not None:
        # Behind the last answer: a producer may have waited for a follower.
        await in_thread(ha_server.stop)
    if role is not None:
        # Behind the last answer: the next master begins now.
        await in_thread(role.end)
    if metrics is not None:
        await in_thread(metrics.close)
    with contextlib.suppress(OSError):
        remove_broker_place(engine.directory)
    try:
        await in_thread(engine.close)
    except StoreError as error:
        logger.error("the store was not closed cleanly: store=%s error=%s", engine.directory, error)
        return 3
    return 0 if has_role else ROLE_ENDED


def begin_metrics(listener: socket.socket, broker: Broker) -> MetricsListener:
    """Answer scrapes on *listener*, on threads of their own."""
    from reput.broker.state.connected_clients import connection_counts
    from reput.metrics.metrics_listener import MetricsListener
    from reput.metrics.store_collector import StoreCollector

    collector = StoreCollector(
        broker.engine,
        lambda: connection_counts(broker.clients),
        quota_refusals=broker.quotas.refused_by_kind,
    )
    return MetricsListener(listener, collector)


def announce(options: ServeOptions) -> None:
    """Print that clients can connect. The keeper does not, because it is still loading its modules."""
    servers = options.name_server or ";".join(options.name_servers) or "none"
    metrics = "" if options.metrics is None else f"metrics=http://{options.metrics}/metrics "
    console = "" if options.console is None else f"console={options.console} "
    beside = f"{metrics}{console}"
    line = f"ready broker={options.broker} name_server={servers} {beside}pid={os.getppid()} store={options.store}\n"
    # Not `print`: if the pipe is closed, its buffer would keep the line, and the flush at exit would fail as well.
    with contextlib.suppress(OSError):
        os.write(STDOUT, os.fsencode(line))


def tell(report: int, message: Ready | Failed) -> None:
    """Send *message* to the keeper, which may have ended."""
    with contextlib.suppress(OSError):
        os.write(report, msgspec.json.encode(message) + b"\n")
        os.close(report)
