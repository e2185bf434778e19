"""Arguments and options that several verbs take, and what they mean."""

from __future__ import annotations

import enum
import functools
import inspect
import re
import sys
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from reput.cli.rows import Body
from reput.errors import BrokerError

if TYPE_CHECKING:
    from reput.settings import LoadedSettings

__all__ = [
    "TIMESTAMP_MAX",
    "BodyOption",
    "ConfigOption",
    "CountOption",
    "FormatOption",
    "OutputFormat",
    "QueueIdArgument",
    "SetOption",
    "StoreArgument",
    "TopicArgument",
    "epilog",
    "parse_time",
    "refuse_address",
    "settings_of",
    "takes_settings",
    "whole_number",
]

Result = TypeVar("Result")

TIMESTAMP_MAX = 2**63 - 1
ADDRESS = re.compile(r"[^/]+:[0-9]+")


class OutputFormat(enum.StrEnum):
    """How results are printed."""

    TEXT = "text"
    JSON = "json"


def epilog(example: str) -> str:
    """Return the end of a verb's help. Behind a backspace nothing is wrapped, so that it can be pasted."""
    return f"\b\nExample:\n  {example}"


def whole_number(low: int = 0) -> Callable[[str], int]:
    """Return a parser of whole numbers from *low* on, whose error names what was written.

    Typer's own number types do so or not, by its version.
    """

    def parse(text: str) -> int:
        # Defaults are parsed, too, and are numbers already.
        written = str(text)
        digits = written.removeprefix("-")
        if not (digits.isascii() and digits.isdigit()) or int(written) < low:
            raise typer.BadParameter(f"{written!r} is no whole number from {low} on")
        return int(written)

    return parse


def given_path(text: str) -> Path:
    """Return a path; one without a letter is the variable that a script forgot to set, and not where we are."""
    if not str(text):
        raise typer.BadParameter("'' is empty")
    return Path(text)


StoreArgument = Annotated[
    Path, typer.Argument(metavar="STORE", parser=given_path, help="A store directory.", show_default=False)
]
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of a topic.", show_default=False)]
QueueIdArgument = Annotated[
    int, typer.Argument(metavar="QUEUE_ID", parser=whole_number(), help="Number of a queue of the topic.")
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings: a TOML file, or a broker's own .properties file."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="One setting, RocketMQ's name in either spelling; may be repeated."
    ),
]
FormatOption = Annotated[
    OutputFormat, typer.Option("--format", help="Results as text for people, or as one JSON object per line.")
]
BodyOption = Annotated[
    Body | None,
    typer.Option("--body", help="The body of each record; by default base64 in JSON, its beginning in text."),
]
CountOption = Annotated[
    int | None, typer.Option("--count", metavar="N", parser=whole_number(1), help="At most so many.")
]


EngineOption = Annotated[
    str,
    typer.Option("--engine", metavar="local|spark", help="Do the work on this machine, or with Spark."),
]


def settings_of(
    store: Path, config: Path | None, assignments: list[str] | None, changes: Collection[str] = ()
) -> LoadedSettings:
    """Return the settings that hold for a store, and say on stderr which of them go unused.

    *changes*: names of recorded settings that get another value.

    Raises:
        ConfigError: a file or a setting is wrong.
        StoreError: reput's record in the store cannot be read.
    """
    from reput.store.state.recorded_settings import load_store_settings

    loaded = load_store_settings(store, config, assignments or (), changes)
    if loaded.unused:
        print(f"reput: settings that only RocketMQ uses: {', '.join(loaded.unused)}", file=sys.stderr)
    return loaded


def takes_settings(verb: Callable[..., Result]) -> Callable[..., Result]:
    """Return *verb*, a command on a STORE to which settings make no difference, with the options for them.

    All verbs on a STORE take them, so that a script may give them to each; what is wrong in them is refused.
    """

    @functools.wraps(verb)
    def run(*arguments: Any, config: Path | None, assignments: list[str] | None, **others: Any) -> Result:
        store = inspect.signature(verb).bind(*arguments, **others).arguments.get("store")
        settings_of(store or Path(), config, assignments)
        return verb(*arguments, **others)

    # Typer makes options of these.
    signature = inspect.signature(verb, eval_str=True)
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in (("config", ConfigOption), ("assignments", SetOption))
    ]
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *added])  # type: ignore[attr-defined]
    run.__annotations__ = {part.name: part.annotation for part in (*signature.parameters.values(), *added)}
    return run


def refuse_address(store: Path) -> None:
    """Refuse ``host:port`` where only a directory will do; it would be taken for the name of a new store.

    Raises:
        BrokerError: it is one, and no such directory exists.
    """
    if ADDRESS.fullmatch(str(store)) and not store.exists():
        raise BrokerError(
            f"this version of reput reaches no name server: target={store}", "Name a store directory, like ./store."
        )


def parse_time(text: str) -> int:
    """Return milliseconds since 1970 UTC for that number, or for an ISO 8601 time, which is local without a zone.

    Raises:
        typer.BadParameter: it is neither.
    """
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither milliseconds since 1970 nor a time like 2026-01-31T12:00:00Z"
        ) from None
    return round(time.astimezone(UTC).timestamp() * 1000)
