"""`reput console`: a store or brokers, in a browser."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from reput.cli.target.console_target import require_console, shown_target
from reput.cli.terminal.options import ConfigOption, SetOption, TargetArgument
from reput.cli.terminal.output import write_line
from reput.cli.verbs.serve import address_text, bound, split_address

__all__ = ["EXAMPLES", "console"]

EXAMPLES = {
    "console": "reput send store orders --count 3"
    " && timeout --preserve-status 3 reput console store --listen 127.0.0.1:0"
}
DANGER = (
    "a console beyond this machine needs accounts and encryption",
    "Give --users with --tls-cert and --tls-key; or --users and --insecure, behind a proxy that encrypts.",
)


def console(
    target: TargetArgument,
    listen: Annotated[
        str, typer.Option("--listen", metavar="H:P", help="Where browsers connect; P 0: any free port.")
    ] = "127.0.0.1:9180",
    users: Annotated[
        Path | None,
        typer.Option("--users", metavar="FILE", help="Accounts, made by `reput password FILE NAME`."),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Its key, PEM.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond this machine without encryption.")
    ] = False,
    proxy: Annotated[
        str | None,
        typer.Option("--proxy", metavar="ADDRESS", help="Proxy or network whose X-Forwarded-For names the client."),
    ] = None,
    audit_log: Annotated[
        Path | None,
        typer.Option("--audit-log", metavar="FILE", help="Record of actions. [reput/log/console.log in the store]"),
    ] = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
) -> None:
    """Show a store, or brokers, in a browser: rates, lags, messages and their life, dispatchers, the log.

    For an open store, dispatchers can be paused, resumed, restarted and rebuilt there, and dead letters replayed. A
    store that no program has open is only read. Metrics are at /metrics. It needs the extra `console`.
    """
    require_console()
    from reput.console.console_options import console_of
    from reput.console.console_server import run_console

    may_be_far = users is not None and (insecure or tls_cert is not None)
    with shown_target(target, config, assignments) as shown:
        listener = bound("--listen", *split_address("--listen", listen), may_be_far, DANGER)
        served = console_of(shown, listener, users, audit_log=audit_log)
        scheme = "http" if tls_cert is None else "https"
        address = address_text(*listener.getsockname()[:2])

        def say_ready() -> None:
            write_line(f"ready console={scheme}://{address}/ target={target}")
            # A program that waits for the line may read a pipe, which Python buffers.
            sys.stdout.flush()

        run_console(served, listener, tls_cert, tls_key, proxy, say_ready)
