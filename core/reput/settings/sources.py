"""Sources of settings: each is read as a list of `Assignment`, in its own order.

TOML has plain settings at the top level, and tables for structured ones:

    flushDiskType = "SYNC_FLUSH"          # or flush_disk_type

    [dispatchers]                         # without options: dispatchers = ["consume_queue"]
    enabled = ["consume_queue", "index", "spark_export"]

    [dispatchers.spark_export]            # options of one dispatcher, as the plugin declares them
    target = "/lake"

    [dispatchers.orders_hook]             # another dispatcher of the same plugin
    plugin = "http_sink"

    [spark]                               # any option of Spark
    master = "local[2]"

    [tls.server]                          # RocketMQ's names of what encrypts connections
    mode = "enforcing"

A ``.properties`` file and ``--set`` use dots instead: ``dispatchers=consume_queue,index``,
``dispatchers.spark_export.target=/lake``, ``spark.master=local[2]``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from reput.errors import ConfigError
from reput.settings.java_properties import parse_properties

__all__ = ["Assignment", "read_assignments", "read_config", "read_mapping"]

CONFIG_SIZE_MAX = 16 << 20


class Assignment(msgspec.Struct, frozen=True):
    """One name and its value, before either is checked.

    Attributes:
        value: text if `textual`, else the TOML or Python value.
        source: name of its origin for error texts: ``--set``, or a file, with the line if known.
    """

    name: str
    value: object
    source: str
    textual: bool = False


def read_config(path: Path) -> list[Assignment]:
    """Read a configuration file: TOML if its name ends in ``.toml``, else a broker's ``.properties`` (or ``.conf``).

    Raises:
        ConfigError: the file cannot be read or parsed.
    """
    try:
        # With a bound: reading a device may never end.
        with path.open("rb") as file:
            data = file.read(CONFIG_SIZE_MAX + 1)
    except OSError as error:
        raise ConfigError(
            f"the configuration cannot be read: config={path} reason={error.strerror}",
            "Give the path of a TOML file or of a broker's .properties file.",
        ) from None
    if len(data) > CONFIG_SIZE_MAX:
        raise ConfigError(
            f"the configuration is too large: config={path} size_max={CONFIG_SIZE_MAX}",
            "Give the path of a TOML file or of a broker's .properties file.",
        )
    if path.suffix == ".toml":
        return read_mapping(parse_toml(data, path), source=str(path))
    try:
        properties = parse_properties(data)
    except ConfigError as error:
        raise ConfigError(f"{error} config={path}") from None
    return [Assignment(name, value, source=f"{path}:{line}", textual=True) for name, value, line in properties]


def parse_toml(data: bytes, path: Path) -> dict[str, object]:
    """Parse TOML; raise ConfigError with the path if it is malformed."""
    import tomllib

    try:
        return tomllib.loads(data.decode())
    except ValueError as error:  # wrong syntax or encoding
        raise ConfigError(
            f"the configuration is not TOML: config={path} reason={error}",
            "Correct the file there; a broker's own settings are read from a file that ends in .properties.",
        ) from None


def read_mapping(mapping: Mapping[str, object], source: str) -> list[Assignment]:
    """Take apart settings that already have types: TOML, Python's keyword arguments, reput's record in the store."""
    assignments = []
    for name, value in mapping.items():
        if isinstance(value, Mapping) and name in ("dispatchers", "spark", "tls"):
            depth = 2 if name == "dispatchers" else None
            assignments += [Assignment(dotted, leaf, source) for dotted, leaf in leaves(name, value, depth)]
        else:
            assignments.append(Assignment(name, value, source))
    return assignments


def leaves(prefix: str, table: Mapping[str, object], depth: int | None) -> Iterable[tuple[str, object]]:
    """Yield ``prefix.a.b`` and its value for everything in *table*, down to *depth* tables; None: all the way."""
    for name, value in table.items():
        dotted = f"{prefix}.{name}"
        if isinstance(value, Mapping) and depth != 1:
            yield from leaves(dotted, value, depth and depth - 1)
        else:
            yield dotted, value


def read_assignments(texts: Iterable[str]) -> list[Assignment]:
    """Take apart the ``NAME=VALUE`` of ``--set``.

    Raises:
        ConfigError: there is no ``=``, or nothing before it.
    """
    assignments = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--set takes NAME=VALUE: --set={text!r}")
        assignments.append(Assignment(name.strip(), value, source="--set", textual=True))
    return assignments
