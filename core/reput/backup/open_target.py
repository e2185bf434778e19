"""open_target: the target that an address names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from reput.backup.directory_target import DirectoryTarget
from reput.backup.target import BackupTarget
from reput.errors import ConfigError

__all__ = ["open_target"]


def open_target(address: str, storage_options: Mapping[str, str] | None = None) -> BackupTarget:
    """Return the target at *address*: a directory, or the URL of an object store, ``s3://bucket/folder``.

    Raises:
        ConfigError: the address is wrong, or a directory got *storage_options*.
        ModuleNotFoundError: the extra ``backup`` is not installed.
    """
    if "://" in address and not address.startswith("file://"):
        from reput.backup.object_target import ObjectTarget

        return ObjectTarget(address, storage_options or {})
    if storage_options:
        raise ConfigError(
            f"a directory has no storage options: storage_options={','.join(storage_options)} target={address}",
            "Name an object store, such as s3://bucket/folder, or leave them out.",
        )
    return DirectoryTarget(Path(address.removeprefix("file://")))
