"""Arguments and options that several verbs take, and what they mean."""

from __future__ import annotations

import enum
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reput.cli.rows import Body

if TYPE_CHECKING:
    from reput.settings import LoadedSettings

__all__ = [
    "BODY_PREVIEW_SIZE",
    "BodyOption",
    "ConfigOption",
    "CountOption",
    "FormatOption",
    "OutputFormat",
    "QueueIdArgument",
    "SetOption",
    "StoreArgument",
    "TopicArgument",
    "parse_time",
    "settings_of",
    "shown_body",
]

BODY_PREVIEW_SIZE = 60  # characters


class OutputFormat(enum.StrEnum):
    """How results are printed."""

    TEXT = "text"
    JSON = "json"


StoreArgument = Annotated[Path, typer.Argument(metavar="STORE", help="A store directory.", show_default=False)]
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of a topic.", show_default=False)]
QueueIdArgument = Annotated[
    int, typer.Argument(metavar="QUEUE_ID", min=0, help="Number of a queue of the topic.", show_default=False)
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
CountOption = Annotated[int | None, typer.Option("--count", metavar="N", min=1, help="At most so many.")]


def settings_of(store: Path, config: Path | None, assignments: list[str] | None) -> LoadedSettings:
    """Return the settings that hold for a store, and say on stderr which of them go unused.

    Raises:
        ConfigError: a file or a setting is wrong.
        StoreError: reput's record in the store cannot be read.
    """
    from reput.settings import load_settings
    from reput.store.identity import read_identity

    identity = read_identity(store)
    recorded: dict[str, Any] = dict(identity.file_sizes) if identity else {}
    loaded = load_settings(config, assignments or (), recorded)
    if loaded.unused:
        print(f"reput: settings that only RocketMQ uses: {', '.join(loaded.unused)}", file=sys.stderr)
    return loaded


def shown_body(body: Body | None, output_format: OutputFormat) -> Body:
    """Return how bodies are shown if nobody said it."""
    return body or (Body.BASE64 if output_format is OutputFormat.JSON else Body.TEXT)


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
