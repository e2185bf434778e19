"""Arguments and options shared by several verbs."""

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

from reput.cli.terminal.rows import Body
from reput.errors import BrokerError

if TYPE_CHECKING:
    from reput.settings import LoadedSettings

__all__ = [
    "ADDRESS",
    "TIMESTAMP_MAX",
    "BodyOption",
    "CatalogOption",
    "CatalogTableOption",
    "ConfigOption",
    "CountOption",
    "FormatOption",
    "LakeFormat",
    "LakeFormatOption",
    "OutputFormat",
    "QueueIdArgument",
    "SetOption",
    "StorageOption",
    "StoreArgument",
    "TargetArgument",
    "TopicArgument",
    "epilog",
    "parse_time",
    "refuse_address",
    "settings_of",
    "storage_options_in",
    "takes_settings",
    "whole_number",
]

Result = TypeVar("Result")

TIMESTAMP_MAX = 2**63 - 1
ADDRESS = re.compile(r"[^/;]+:[0-9]+(;[^/;]+:[0-9]+)*;?")


class OutputFormat(enum.StrEnum):
    """The format of results."""

    TEXT = "text"
    JSON = "json"


class LakeFormat(enum.StrEnum):
    """The format of a lake's table."""

    DELTA = "delta"
    ICEBERG = "iceberg"


def epilog(example: str) -> str:
    """Return the end of a verb's help. The backspace keeps the example from being wrapped, so it can be pasted."""
    return f"\b\nExample:\n  {example}"


def whole_number(low: int = 0) -> Callable[[str], int]:
    """Return a parser for whole numbers of at least *low*, whose error names the given text.

    Some versions of Typer do that for their own number types, others do not.
    """

    def parse(text: str) -> int:
        # Defaults are parsed, too, and are already numbers.
        written = str(text)
        digits = written.removeprefix("-")
        if not (digits.isascii() and digits.isdigit()) or int(written) < low:
            raise typer.BadParameter(f"{written!r} is not a whole number of at least {low}")
        return int(written)

    return parse


def given_path(text: str) -> Path:
    """Return a path; refuse an empty one, which is an unset variable of a script rather than the current directory."""
    if not str(text):
        raise typer.BadParameter("'' is empty")
    return Path(text)


StoreArgument = Annotated[
    Path, typer.Argument(metavar="STORE", parser=given_path, help="Store directory.", show_default=False)
]
TargetArgument = Annotated[
    Path,
    typer.Argument(
        metavar="TARGET",
        parser=given_path,
        help="A store directory, a name server's HOST:PORT, or a broker's unix:PATH.",
        show_default=False,
    ),
]
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of a topic.", show_default=False)]
QueueIdArgument = Annotated[
    int, typer.Argument(metavar="QUEUE_ID", parser=whole_number(), help="Number of a queue of the topic.")
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings file: TOML, or a broker's own .properties file."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="A setting, by RocketMQ's name in either spelling; may be repeated."
    ),
]
StorageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="NAME=VALUE",
        help="Setting of the Delta library for an object store, such as AWS_REGION=…; may be repeated. Put keys "
        "into the environment, which the library reads, too.",
    ),
]
LakeFormatOption = Annotated[
    LakeFormat, typer.Option("--lake-format", help="Format of the table. Iceberg needs the extra `iceberg`.")
]
CatalogOption = Annotated[
    str | None,
    typer.Option(
        "--catalog",
        metavar="NAME",
        help="Iceberg catalog, as pyiceberg's configuration names it. Without it, a lake in a folder has a catalog "
        "of its own there: catalog.db.",
    ),
]
CatalogTableOption = Annotated[
    str | None,
    typer.Option("--catalog-table", metavar="NAME", help="The table's name in the catalog; default reput.lake."),
]
FormatOption = Annotated[
    OutputFormat, typer.Option("--format", help="Print results as text, or as one JSON object per line.")
]
BodyOption = Annotated[
    Body | None,
    typer.Option("--body", help="Format of record bodies; default: base64 in JSON, shortened in text."),
]
CountOption = Annotated[
    int | None, typer.Option("--count", metavar="N", parser=whole_number(1), help="Maximum number of results.")
]


EngineOption = Annotated[
    str,
    typer.Option("--engine", metavar="local|spark", help="Work on this machine, or with Spark."),
]


def storage_options_in(words: Collection[str]) -> dict[str, str]:
    """Return the NAME=VALUE pairs of `StorageOption` by name."""
    found = {}
    for word in words:
        name, separator, value = word.partition("=")
        if not name or not separator:
            # Do not print the value, which may be a secret.
            raise typer.BadParameter(f"--storage-option takes NAME=VALUE: name={name}")
        found[name] = value
    return found


def settings_of(
    store: Path, config: Path | None, assignments: list[str] | None, changes: Collection[str] = ()
) -> LoadedSettings:
    """Return the effective settings for a store, and list unused ones on stderr.

    *changes*: names of recorded settings that may get another value.

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
    """Return *verb*, which ignores settings, with options for them.

    All verbs on a STORE accept settings, so that a script may pass them to each verb; errors in them are refused.
    """

    @functools.wraps(verb)
    def run(*arguments: Any, config: Path | None, assignments: list[str] | None, **others: Any) -> Result:
        store = inspect.signature(verb).bind(*arguments, **others).arguments.get("store")
        settings_of(store or Path(), config, assignments)
        return verb(*arguments, **others)

    # Typer reads the options from these.
    signature = inspect.signature(verb, eval_str=True)
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in (("config", ConfigOption), ("assignments", SetOption))
    ]
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *added])  # type: ignore[attr-defined]
    run.__annotations__ = {part.name: part.annotation for part in (*signature.parameters.values(), *added)}
    return run


def refuse_address(store: Path) -> None:
    """Refuse ``host:port`` in place of a directory; otherwise it would become the name of a new store.

    Raises:
        BrokerError: it is an address, and no such directory exists.
    """
    if ADDRESS.fullmatch(str(store)) and not store.exists():
        raise BrokerError(
            f"the verb works on a store's own files, not through a name server: target={store}",
            "Name a store directory, like ./store.",
        )


def parse_time(text: str) -> int:
    """Return milliseconds since 1970 UTC from such a number, or from an ISO 8601 time, which is local without a zone.

    Raises:
        typer.BadParameter: *text* is neither.
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
