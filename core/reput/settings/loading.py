"""load_settings: merges all sources into one checked `Settings`; later sources override earlier ones."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from reput.errors import ConfigError
from reput.settings.settings import DISPATCHER_NAME, Settings
from reput.settings.sources import Assignment, read_assignments, read_config, read_mapping
from reput.settings.spelling import is_known_to_rocketmq, nearest_name, setting_name
from reput.settings.values import field_value, option_value, spark_value, value_text

__all__ = ["LoadedSettings", "given_settings", "load_settings", "require_recorded"]

# RocketMQ's switches that have the same effect as listing a dispatcher.
SWITCH_OF_DISPATCHER = {"index": "message_index_enable", "consume_queue_ext": "enable_consume_queue_ext"}
DEFAULTS = Settings()
# In a dispatcher's section: the name of its plugin, if that differs from the dispatcher's.
PLUGIN_OPTION = "plugin"


class LoadedSettings(msgspec.Struct, frozen=True):
    """The result of `load_settings`.

    Attributes:
        unused: names that RocketMQ knows and reput does not use, in order and as spelled, for one warning.
        explicit: fields of `Settings` that the configuration, ``--set`` or a keyword argument gave.
    """

    settings: Settings
    unused: tuple[str, ...]
    explicit: frozenset[str]


def load_settings(
    config: Path | None = None,
    assignments: Sequence[str] = (),
    recorded: Mapping[str, object] | None = None,
    changes: Collection[str] = (),
    found: Mapping[str, object] | None = None,
    **settings: object,
) -> LoadedSettings:
    """Read settings from every source and check them.

    Within a source, `dispatchers` overrides ``message_index_enable``; a later source overrides both. Unless given, the
    store host is made from ``broker_ip1`` and ``listen_port``, and the born host is the store host.

    Args:
        config: a TOML file, or a broker's own ``.properties`` file.
        assignments: the ``NAME=VALUE`` of ``--set``; the last one of a name applies.
        recorded: reput's record in the store, which overrides RocketMQ's defaults; see `require_recorded`.
        changes: recorded fields of `Settings` that may get another value.
        found: settings inferred from the files of a store without a record; every other source overrides them.
        **settings: as in `reput.open`; they override everything.

    Raises:
        ConfigError: a file cannot be read; a name is unknown to reput and to RocketMQ; a value has the wrong type, is
            out of bounds or contradicts another one (the setting is named as it was spelled); or a value differs from
            *recorded* and is not in *changes*.
    """
    layers = SettingsLayers()
    layers.put(read_mapping(found or {}, source="the store's files"), explicit=False)
    layers.put(read_mapping(recorded or {}, source="reput's record in the store"), explicit=False)
    layers.put(read_config(config) if config is not None else ())
    layers.put(read_assignments(assignments))
    layers.put(read_mapping(settings, source="keyword argument"))
    loaded = layers.settings()
    require_recorded(loaded, recorded or {}, changes)
    return LoadedSettings(loaded, tuple(layers.unused), frozenset(layers.explicit))


def require_recorded(settings: Settings, recorded: Mapping[str, object], changes: Collection[str] = ()) -> None:
    """Refuse *settings* that change the meaning of bytes already in the store.

    Args:
        recorded: fields of `Settings` that are recorded with the store, and their values.
        changes: fields that may get another value.

    Raises:
        ConfigError: a value differs, and the field is not in *changes*.
    """
    for name, value in recorded.items():
        given = getattr(settings, name)
        if given != value and name not in changes:
            raise ConfigError(
                f"the store is written with another value of this setting: {name}={value_text(given)} "
                f"recorded={value_text(value)}",
                f"Leave {name} out, or change it with `reput settings STORE --change {name}=…`.",
            )


class SettingsLayers:
    """Values of settings; each source overrides those before it."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.options: dict[str, dict[str, object]] = {}
        self.plugins: dict[str, str] = {}
        self.spark: dict[str, str] = {}
        self.unused: dict[str, None] = {}
        self.explicit: set[str] = set()

    def put(self, assignments: Iterable[Assignment], explicit: bool = True) -> None:
        """Apply one source on top of the earlier ones."""
        layer: dict[str, Any] = {}
        spelled: dict[str, str] = {}
        for assignment in assignments:
            name = assignment.name
            table, _, rest = name.partition(".")
            if table == "spark" and rest:
                field = "spark_options"
                self.spark[name] = spark_value(assignment)
            elif table == "dispatchers" and rest and rest != "enabled":
                field = self.put_option(assignment)
            elif known := "dispatchers" if name == "dispatchers.enabled" else setting_name(name):
                field = known
                layer[field] = field_value(field, assignment)
                if (other := spelled.setdefault(field, name)) != name:
                    raise ConfigError(
                        f"one setting is given in two spellings: {other} {name} source={assignment.source}"
                    )
            else:
                self.put_unused(assignment)
                continue
            if explicit:
                self.explicit.add(field)
        self.values |= layer
        self.put_switches(layer)

    def put_option(self, assignment: Assignment) -> str:
        """Store one option of one dispatcher, to be checked by the plugin's own struct, or the plugin's name.

        Returns:
            The field of `Settings` that holds it.
        """
        _, name, option = (*assignment.name.split(".", 2), "")[:3]
        if not option or not DISPATCHER_NAME.fullmatch(name):
            raise ConfigError(
                "an option of a dispatcher is written dispatchers.NAME.OPTION: "
                f"{assignment.name}={assignment.value} source={assignment.source}"
            )
        if option == PLUGIN_OPTION:
            if not isinstance(assignment.value, str) or not assignment.value.strip():
                raise ConfigError(
                    f"{assignment.name} takes the name of an installed dispatcher: "
                    f"{assignment.name}={assignment.value} source={assignment.source}",
                    "See `reput plugin list`.",
                )
            self.plugins[name] = assignment.value.strip()
            return "dispatcher_plugins"
        self.options.setdefault(name, {})[option] = option_value(assignment)
        return "dispatcher_options"

    def put_unused(self, assignment: Assignment) -> None:
        """Note a name that only RocketMQ uses; refuse a name that neither reput nor RocketMQ knows."""
        if not is_known_to_rocketmq(assignment.name):
            nearest = nearest_name(assignment.name)
            raise ConfigError(
                f"unknown setting: name={assignment.name} source={assignment.source}",
                f"Did you mean {nearest}?" if nearest else "Neither reput nor RocketMQ has a setting of that name.",
            )
        self.unused[assignment.name] = None

    def put_switches(self, layer: Mapping[str, Any]) -> None:
        """Make the list of dispatchers and RocketMQ's switches agree; *layer* may have changed either."""
        enabled: tuple[str, ...] = self.values.get("dispatchers", DEFAULTS.dispatchers)
        for name, switch in SWITCH_OF_DISPATCHER.items():
            if switch in layer and "dispatchers" not in layer:
                others = tuple(other for other in enabled if other != name)
                enabled = enabled if layer[switch] and name in enabled else (*others, name) if layer[switch] else others
            self.values[switch] = name in enabled
        self.values["dispatchers"] = enabled

    def settings(self) -> Settings:
        """Return the merged settings."""
        values = self.values
        if "store_host" not in values:
            address = numeric_address(values.get("broker_ip1", DEFAULTS.broker_ip1))
            port = values.get("listen_port", DEFAULTS.listen_port)
            values["store_host"] = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        values.setdefault("born_host", values["store_host"])
        return Settings(
            **values, dispatcher_options=self.options, dispatcher_plugins=self.plugins, spark_options=self.spark
        )


def numeric_address(broker_ip1: str) -> str:
    """Return the address of a host that may be given by its name: records hold addresses, never names.

    Raises:
        ConfigError: no host of this name is known.
    """
    try:
        return str(ipaddress.ip_address(broker_ip1))
    except ValueError:
        # Loaded for names only.
        import socket
    try:
        return socket.gethostbyname(broker_ip1)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"no host of this name is known: broker_ip1={broker_ip1!r} reason={error}", "Give its address."
        ) from None


def given_settings(settings: Settings) -> dict[str, object]:
    """Return the fields of *settings* that differ from their defaults, as keyword arguments of `load_settings`."""
    given = {
        field: value
        for field in Settings.__struct_fields__
        if (value := getattr(settings, field)) != getattr(DEFAULTS, field)
    }
    for name, options in settings.dispatcher_options.items():
        given |= {f"dispatchers.{name}.{option}": value for option, value in options.items()}
    given |= {f"dispatchers.{name}.{PLUGIN_OPTION}": plugin for name, plugin in settings.dispatcher_plugins.items()}
    given |= settings.spark_options
    for field in ("dispatcher_options", "dispatcher_plugins", "spark_options"):
        given.pop(field, None)
    return given
