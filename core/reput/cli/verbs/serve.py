"""`reput serve`: a store on the network, as a RocketMQ broker with a name server beside it."""

from __future__ import annotations

import enum
import errno
import ipaddress
import os
import socket
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from reput.cli.terminal.options import ConfigOption, SetOption, StoreArgument, refuse_address, settings_of
from reput.errors import BrokerError, ConfigError

__all__ = ["EXAMPLE", "serve"]

EXAMPLE = "timeout --preserve-status 3 reput serve store --listen 127.0.0.1:0 --name-server-listen 127.0.0.1:0"
BACKLOG = 1024
ANYBODY = "anybody could read and write the store from there"
CONSOLE_DANGER = (
    "a console beyond this machine needs accounts and encryption",
    "Give --console-users with --tls-cert and --tls-key; or --console-users and --insecure behind an encrypting proxy.",
)
ELSEWHERE_ADVICE = (
    "This machine does not have it. Listen on one that it has, such as --listen 0.0.0.0:10911; clients are still told "
    "broker_ip1."
)
PROTECT_ADVICE = "Listen on 127.0.0.1, name accounts with --acl, or add --insecure if the network is trusted."


class TlsMode(enum.Enum):
    """Which connections are encrypted."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


FAST_PORT_DISTANCE = 2
HA_PORT_DISTANCE = 1
NAME_SERVER_LISTEN = "127.0.0.1:9876"


def serve(
    store: StoreArgument,
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="H:P", help="Where clients connect; P 0: any free port. [127.0.0.1:10911]"),
    ] = None,
    name_server: Annotated[
        str | None,
        typer.Option(
            "--name-server",
            metavar="H:P|none",
            help="Name servers to register with, separated by semicolons, instead of one beside the broker; or none.",
        ),
    ] = None,
    name_server_listen: Annotated[
        str,
        typer.Option("--name-server-listen", metavar="H:P", help="Where the name server beside the broker listens."),
    ] = NAME_SERVER_LISTEN,
    ha_listen: Annotated[
        str | None,
        typer.Option(
            "--ha-listen",
            metavar="H:P|none",
            help="Where followers copy the log: RocketMQ's slaves and `reput follow`. [one port above --listen]",
        ),
    ] = None,
    follow: Annotated[
        str | None,
        typer.Option(
            "--follow",
            metavar="MASTER",
            help="Serve as the slave of this master, HOST:PORT of its HA port; with --follow-name-server, its broker's "
            "name.",
        ),
    ] = None,
    follow_name_server: Annotated[
        str | None,
        typer.Option("--follow-name-server", metavar="H:P;H:P", help="Name servers that know the master's broker."),
    ] = None,
    follow_broker: Annotated[
        str | None,
        typer.Option("--follow-broker", metavar="H:P", help="Where the master answers. [one port below the HA port]"),
    ] = None,
    lease: Annotated[
        str | None,
        typer.Option(
            "--lease",
            metavar="URL",
            help="Be one node of several, of which a lease in etcd makes one the master: etcd://HOST:PORT/NAME, or etcds://.",
        ),
    ] = None,
    discard: Annotated[
        bool,
        typer.Option(
            "--discard", help="With --lease: move records that the master lacks to reput/cut/, and follow from there."
        ),
    ] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond this machine without authentication.")
    ] = False,
    tls: Annotated[
        TlsMode | None,
        typer.Option(
            "--tls",
            metavar="MODE",
            help="disabled, permissive (plain connections as well) or enforcing. [permissive with --tls-cert]",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate of the broker, PEM.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Its key, PEM.")] = None,
    acl: Annotated[
        Path | None,
        typer.Option("--acl", metavar="FILE", help="Accounts that clients need: a plain_acl.yml of RocketMQ 4."),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option("--metrics", metavar="H:P", help="Where Prometheus reads metrics, at /metrics."),
    ] = None,
    console: Annotated[
        str | None, typer.Option("--console", metavar="H:P", help="Where browsers see the store: a console.")
    ] = None,
    console_users: Annotated[
        Path | None, typer.Option("--console-users", metavar="FILE", help="As --users of `reput console`.")
    ] = None,
    console_proxy: Annotated[
        str | None, typer.Option("--console-proxy", metavar="ADDRESS", help="As --proxy of `reput console`.")
    ] = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
) -> NoReturn:
    """Serve a store on the network until SIGTERM or Ctrl-C. RocketMQ's clients and tools connect to it unchanged.

    One line on stdout says when clients can connect. A broker that dies is started again.
    """
    from reput.broker.keeper import become_keeper
    from reput.broker.serve_options import ServeOptions

    refuse_address(store)
    assignments = [*(assignments or ()), *protection_of(tls, tls_cert, tls_key, acl)]
    loaded = settings_of(store, config, assignments)
    settings = loaded.settings
    trusted, insecure = insecure, insecure or settings.has_accounts
    host, port = (settings.broker_ip1, settings.listen_port) if listen is None else split_address("--listen", listen)
    named = settings.namesrv_addr if name_server is None else name_server
    if settings.broker_role == "SLAVE" and follow is None and lease is None:
        raise ConfigError(
            "a slave follows a master, and none is named: broker_role=SLAVE",
            "Add --follow HOST:PORT with the master's HA port, or set broker_role=ASYNC_MASTER to serve it alone.",
        )
    if lease is not None:
        require_lease(lease, follow, ha_listen)
    elif discard:
        raise ConfigError("only a node of a lease discards: --discard", "Add --lease, or use `reput follow --discard`.")
    servers = [] if named == "none" else split_addresses(named)
    for server in servers:
        split_address("--name-server", server)
    port_is_fixed = port != 0
    listeners = [bound("--listen", host, port, insecure)]
    if port > FAST_PORT_DISTANCE:
        # Clients with the VIP channel send there.
        listeners.append(bound("--listen", host, port - FAST_PORT_DISTANCE, insecure))
    port = listeners[0].getsockname()[1]
    named_address = settings.broker_ip1 if listen is None or "broker_ip1" in loaded.explicit else None
    advertised = named_address or advertised_address(host)
    names = None
    if not named:
        name_host, name_port = split_address("--name-server-listen", name_server_listen)
        listeners.append(bound("--name-server-listen", name_host, name_port, insecure))
        names = address_text(name_host, listeners[-1].getsockname()[1])
    if listen is None and settings.ha_listen_port:
        ha_port = settings.ha_listen_port
    else:
        ha_port = port + HA_PORT_DISTANCE if port_is_fixed else 0
    ha_listener = bound_ha(ha_listen, host, ha_port, insecure)
    ha = None
    if ha_listener is not None:
        listeners.append(ha_listener)
        ha_host = host if ha_listen is None else split_address("--ha-listen", ha_listen)[0]
        ha_port = ha_listener.getsockname()[1]
        ha = address_text(named_address or advertised_address(ha_host), ha_port)
    metrics_at = None
    if metrics is not None:
        listeners.append(metrics_listener(metrics, trusted))
        metrics_at = address_text(*listeners[-1].getsockname()[:2])
    shown: dict[str, Any] = {}
    if console is not None:
        watching, shown = console_beside(
            store, console, console_users, console_proxy, (tls_cert, tls_key), trusted, config, assignments
        )
        # Kept open until this process has become the keeper, which hands it on.
        shown["console_listener"] = watching.detach()
    given: dict[str, Any] = {
        "broker_ip1": advertised,
        "listen_port": port,
        "ha_listen_port": 0 if ha is None else ha_port,
    }
    options = ServeOptions(
        store=os.fspath(store.absolute()),
        config=None if config is None else os.fspath(config.absolute()),
        assignments=assignments,
        given=given,
        listeners=[listener.fileno() for listener in listeners],
        broker=address_text(advertised, port),
        name_server=names,
        name_servers=servers,
        ha=ha,
        ha_allows_unsigned=trusted,
        follow=follow,
        follow_name_server=follow_name_server,
        follow_broker=follow_broker,
        lease=lease,
        discard=discard,
        metrics=metrics_at,
        **shown,
    )

    become_keeper(options, listeners)


def require_lease(lease: str, follow: str | None, ha_listen: str | None) -> None:
    """Refuse options that do not go with a lease.

    Raises:
        ConfigError: they name a master, no lease, or no HA port.
    """
    from reput.lease.etcd_agreement import open_agreement

    open_agreement(lease, 1.0)
    if follow is not None:
        raise ConfigError(f"the lease decides which master is followed: --follow={follow}", "Leave out --follow.")
    if ha_listen == "none":
        raise ConfigError(
            "a node of a lease needs an HA port, where the others follow it: --ha-listen=none",
            "Name an address that the other nodes reach, or leave out --ha-listen.",
        )


def protection_of(tls: TlsMode | None, cert: Path | None, key: Path | None, acl: Path | None) -> list[str]:
    """Return the settings that the options of encryption and accounts stand for, as assignments."""
    given = [] if tls is None else [f"tls_server_mode={tls.value}"]
    for name, path in (("tls_server_cert_path", cert), ("tls_server_key_path", key), ("acl_file", acl)):
        if path is not None:
            given.append(f"{name}={os.fspath(path.absolute())}")
    return given if acl is None else [*given, "acl_enable=true"]


def split_addresses(text: str) -> list[str]:
    """Return the addresses of ``host:port;host:port``."""
    return [address.strip() for address in text.replace(",", ";").split(";") if address.strip()]


def split_address(option: str, text: str) -> tuple[str, int]:
    """Return host and port.

    Raises:
        ConfigError: the text is no address.
    """
    from reput.remoting.remoting_client import Unreachable, parse_address

    try:
        return parse_address(text)
    except Unreachable:
        raise ConfigError(f"an address has the form HOST:PORT: {option}={text}") from None


def console_beside(
    store: Path,
    address: str,
    users: Path | None,
    proxy: str | None,
    pair: tuple[Path | None, Path | None],
    trusted: bool,
    config: Path | None,
    assignments: list[str],
) -> tuple[socket.socket, dict[str, Any]]:
    """Return the socket of a console beside the broker, and how it is started. *pair*: certificate and key."""
    import sys

    from reput.cli.target.console_target import require_console

    require_console()
    import msgspec

    from reput.console.console_options import ConsoleOptions
    from reput.process.system.command import role_command

    cert, key = (None if path is None else os.fspath(path.absolute()) for path in pair)
    may_be_far = users is not None and (trusted or cert is not None)
    listener = bound("--console", *split_address("--console", address), may_be_far, CONSOLE_DANGER)
    options = ConsoleOptions(
        store=os.fspath(store.absolute()),
        config=None if config is None else os.fspath(config.absolute()),
        assignments=assignments,
        listener=listener.fileno(),
        users=None if users is None else os.fspath(users.absolute()),
        cert=cert,
        key=key,
        proxy=proxy,
    )
    if proxy is not None:
        from reput.console.console_server import require_network

        require_network(proxy)
    if users is not None:
        from reput.console.accounts import Accounts

        # Checked now: the console's own process could only end again and again.
        Accounts(users)
    main = Path(__file__).parents[2] / "console" / "__main__.py"
    command = role_command("console", msgspec.json.encode(options).decode(), path=sys.path, main=main)
    scheme = "http" if cert is None else "https"
    where = f"{scheme}://{address_text(*listener.getsockname()[:2])}/"
    return listener, {"console": where, "console_command": command}


def metrics_listener(address: str, trusted: bool) -> socket.socket:
    """Return the socket where metrics are read; a scraper has no account."""
    from reput.metrics.prometheus import require_prometheus_client

    require_prometheus_client()
    return bound(
        "--metrics",
        *split_address("--metrics", address),
        trusted,
        ("anybody could read the metrics from there", "Listen on 127.0.0.1, or add --insecure."),
    )


def bound(
    option: str, host: str, port: int, insecure: bool, danger: tuple[str, str] = (ANYBODY, PROTECT_ADVICE)
) -> socket.socket:
    """Return a socket that is bound to an address. *danger*: why not beyond this machine, and the advice.

    Raises:
        ConfigError: the address is not of this machine alone, and nothing protects the broker.
        BrokerError: it cannot be bound.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise BrokerError(f"this machine does not have the address: {option}={host}:{port} reason={error}") from None
    if not insecure and not ipaddress.ip_address(address[0]).is_loopback:
        raise ConfigError(f"{danger[0]}: {option}={host}:{port}", danger[1])
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise BrokerError(
            f"the address cannot be listened on: {option}={host}:{port} reason={error.strerror}",
            ELSEWHERE_ADVICE
            if error.errno == errno.EADDRNOTAVAIL
            else "Stop what listens there, or choose another port; port 0 takes any free one.",
        ) from None
    return listener


def bound_ha(ha_listen: str | None, host: str, port: int, trusted: bool) -> socket.socket | None:
    """Return the bound socket of the HA port, None if there is none.

    It hands out the whole log. So beyond this machine it is opened only where accounts protect it, or where that was
    asked for.

    Args:
        ha_listen: the option; None: it was not given.
        host, port: where it listens by default; 0: any free port.
        trusted: followers need accounts, or the person has declared the network trusted.

    Raises:
        ConfigError, BrokerError: as of `bound`.
    """
    if ha_listen == "none":
        return None
    if ha_listen is not None:
        return bound("--ha-listen", *split_address("--ha-listen", ha_listen), trusted)
    try:
        return bound("--ha-listen", host, port, trusted)
    except ConfigError:
        return None


def advertised_address(host: str) -> str:
    """Return the IP address that clients are told, for a broker that listens on *host* and was not told its address."""
    address = ipaddress.ip_address(socket.gethostbyname(host) if ":" not in host else host)
    if not address.is_unspecified:
        return str(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # No packet is sent: the system only says which of its addresses it would use.
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def address_text(host: str, port: int) -> str:
    """Return ``host:port``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
