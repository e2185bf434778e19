"""`reput top`: a store or brokers, watched in a terminal."""

from __future__ import annotations

import sys

from reput.cli.terminal.options import ConfigOption, SetOption, TargetArgument
from reput.errors import ConfigError

__all__ = ["EXAMPLES", "top"]

EXAMPLES = {"top": "reput top --help"}


def top(target: TargetArgument, config: ConfigOption = None, assignments: SetOption = None) -> None:
    """Watch a store, or brokers, in the terminal: rates, dispatchers, the lag of groups, topics.

    It reads once a second. For a store that no program has open, it shows what is on disk. Keys: q quits, space
    freezes, tab goes to the next table. It needs the extra `top`.
    """
    from reput.cli.target.remote import is_address
    from reput.cli.target.watched_target import watched_source

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError(f"this is no terminal: target={target}", "For a script: reput status TARGET --format json.")
    try:
        from reput.top.top_app import TopApp
    except ImportError as error:
        raise ConfigError(
            f"reput top needs a library that is not installed: error={error}", 'Install it: pip install "reput[top]".'
        ) from None
    with watched_source(target, config, assignments) as source:
        TopApp(source, not is_address(target)).run()
