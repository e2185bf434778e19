"""The two spellings of a setting's name: RocketMQ's, and the same in snake case."""

from __future__ import annotations

import difflib
import re

from reput.settings.known_names import ROCKETMQ_NAMES
from reput.settings.settings import Settings

__all__ = ["is_known_to_rocketmq", "nearest_name", "setting_name", "snake_case"]

WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def snake_case(name: str) -> str:
    """Return RocketMQ's *name* in snake case: ``checkCRCOnRecover`` is ``check_crc_on_recover``."""
    return WORD_START.sub("_", name).lower()


def camel_case(name: str) -> str:
    """Return one of reput's own names as RocketMQ would spell it."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


ROCKETMQ_SPELLING = {snake_case(name): name for name in ROCKETMQ_NAMES}
# RocketMQ reads these from Java's system properties, or from the file that ``tls.config.file`` names.
TLS_SPELLING = {
    "tls_server_mode": "tls.server.mode",
    "tls_server_cert_path": "tls.server.certPath",
    "tls_server_key_path": "tls.server.keyPath",
    "tls_server_key_password": "tls.server.keyPassword",
    "tls_server_need_client_auth": "tls.server.need.client.auth",
    "tls_server_trust_cert_path": "tls.server.trustCertPath",
}
assert len(ROCKETMQ_SPELLING) == len(ROCKETMQ_NAMES)  # No two of RocketMQ's names become the same in snake case.

# Options are named one by one, with dots.
NAMED_WITH_DOTS = frozenset({"dispatcher_options", "dispatcher_plugins", "spark_options"})
FIELDS = [field for field in Settings.__struct_fields__ if field not in NAMED_WITH_DOTS]
SETTING_NAMES = {field: field for field in FIELDS} | {
    TLS_SPELLING.get(field) or ROCKETMQ_SPELLING.get(field, camel_case(field)): field for field in FIELDS
}


def setting_name(name: str) -> str | None:
    """Return the field of `Settings` that *name* means in either spelling, None if it means none."""
    return SETTING_NAMES.get(name)


def is_known_to_rocketmq(name: str) -> bool:
    """Tell whether a RocketMQ broker knows *name*, used by reput or not."""
    return name in ROCKETMQ_NAMES or name in ROCKETMQ_SPELLING or name in TLS_SPELLING.values()


def nearest_name(name: str) -> str | None:
    """Return the known name most similar to *name*, in the spelling of *name*; None if none is similar."""
    if "_" in name or name.islower():
        known = {*FIELDS, *ROCKETMQ_SPELLING}
    else:
        known = {*SETTING_NAMES, *ROCKETMQ_NAMES} - set(FIELDS)
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1)), None)
