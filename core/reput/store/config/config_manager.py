"""ConfigManager: one file of a broker's configuration, ``config/NAME.json`` with its backup ``NAME.json.bak``.

The backup is replaced first, then the file, each as a whole: one of the two is whole at any moment. If the file cannot
be read, the backup is used, as in RocketMQ. A torn file never becomes the backup.

Source: RocketMQ, ConfigManager and MixAll.string2File.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from reput.errors import DamagedStore, StoreError
from reput.store.config.config_json import format_config, parse_config
from reput.store.disk.files import Clock, Files
from reput.store.disk.shortages import tell_store_error

__all__ = ["ConfigManager"]


class ConfigManager:
    """Base of the managers: their content lives in memory between `load` and `persist`. Any thread may call.

    A subclass names its file, and converts between the file's fields and its content.
    """

    file_name: ClassVar[str]

    def __init__(self, store_directory: Path, files: Files | None = None, clock: Clock | None = None) -> None:
        self.path = store_directory / "config" / self.file_name
        self.files = files or Files()
        self.clock = clock or Clock()
        self.lock = threading.RLock()
        # The file's content, if it was readable and nothing has changed since.
        self.whole_text: str | None = None

    def read_fields(self, fields: dict[str, Any]) -> None:
        """Take over the fields of a file. If it raises, nothing changes.

        Raises:
            msgspec.ValidationError: a field has another type or is missing.
        """
        raise NotImplementedError

    def write_fields(self) -> dict[str, Any]:
        """Return the fields of the file to write."""
        raise NotImplementedError

    def text(self) -> str:
        """Return the text of the file to write."""
        return format_config(self.write_fields())

    @property
    def backup_path(self) -> Path:
        """Where the content before the last change is kept."""
        return self.path.with_name(self.path.name + ".bak")

    def load(self) -> None:
        """Read the file, or else its backup. Without either, use the content of a new broker.

        Raises:
            DamagedStore: there is a file or a backup, but neither can be read.
            StoreError: the system refuses.
        """
        with self.lock:
            damage: DamagedStore | None = None
            for path in (self.path, self.backup_path):
                try:
                    text = self.read_whole(path)
                except DamagedStore as error:
                    damage = damage or error
                    continue
                if text is None:
                    continue
                self.whole_text = text if path == self.path else None
                return
            if damage:
                raise damage

    def read_whole(self, path: Path) -> str | None:
        """Take over the content of *path* and return its text; None if it is absent or empty, as in RocketMQ.

        Raises:
            DamagedStore: the file is torn, or has another shape.
            StoreError: the system refuses.
        """
        try:
            text = path.read_bytes().decode()
            if not text:
                return None
            fields = parse_config(text)
            if not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
                raise DamagedStore("stored configuration is not a JSON object")
            self.read_fields(fields)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(
                f"stored configuration cannot be read: path={path} error={error.strerror}", "Check its owner and mode."
            ) from None
        except (DamagedStore, UnicodeDecodeError, msgspec.ValidationError) as error:
            raise DamagedStore(
                f"stored configuration cannot be read: path={path} reason={error}",
                "Restore it from a copy, or move it and its .bak away to start with an empty one.",
            ) from None
        return text

    def persist(self) -> None:
        """Write the content durably if it differs from the file's.

        Raises:
            StoreFull: the disk has no space; the file is unchanged.
            StoreError: the system refuses; the file is unchanged.
        """
        with self.lock, tell_store_error("the configuration cannot be written"):
            text = self.text()
            if text == self.whole_text:
                return
            folder = self.path.parent
            if not folder.parent.is_dir():
                # It was moved: the file would begin another store at the old place.
                raise StoreError(f"the store's directory is gone: store={folder.parent}")
            if not folder.is_dir():
                self.files.make_directory(folder)
                # Without this, a crash loses the new directory's name, and with it the files forced into it.
                self.files.force_directory(folder.parent)
            if self.whole_text is not None:
                self.files.replace(self.backup_path, self.whole_text.encode())
            self.files.replace(self.path, text.encode())
            self.whole_text = text
