"""ObjectTarget: backups in an object store, through obstore.

obstore is the Rust library `object_store` for Python, the one that the Delta library of `reput export` is made with. So
an object store has the same settings here and there: ``AWS_REGION``, ``AWS_ENDPOINT_URL``, … or the environment's.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import from_url

from reput.backup.target import CHUNK_SIZE, Bytes, ObjectWriter
from reput.errors import ConfigError, StoreError

__all__ = ["ObjectTarget"]

STORE_PREFIX = re.compile(r"^(aws|azure|google)_")
CONNECTION_OPTIONS = (
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "timeout",
    "proxy_url",
    "user_agent",
)
# A part of an upload, of which an object store takes 10,000.
PART_SIZE = 16 << 20
PARTS_AT_ONCE = 4
# An object store has no lock: a younger object that no backup needs may be one of a backup at work.
UNUSED_AGE = timedelta(days=1)


class ObjectTarget:
    """A target in an object store."""

    def __init__(self, address: str, storage_options: Mapping[str, str]) -> None:
        """
        Raises:
            ConfigError: obstore does not understand *address* or an option.
        """
        self.address = address
        try:
            config, client_options = split_options(storage_options)
            self.store = from_url(address, config=config, client_options=client_options)  # type: ignore[call-overload]
        except (BaseError, ValueError) as error:
            raise ConfigError(
                f"the object store cannot be used: target={address} error={first_line(error)}",
                "Name it like s3://bucket/folder, and its settings with --storage-option or in the environment.",
            ) from None

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Turn errors of the object store into ours."""
        try:
            yield
        except (BaseError, OSError) as error:
            raise StoreError(
                f"the object store refuses: target={self.address} error={first_line(error)}",
                "Check address, region and credentials; then run the command again, which continues.",
            ) from None

    def lock(self) -> contextlib.AbstractContextManager[None]:
        # Names of pieces are unique, and a manifest is never replaced: two backups at a time do not harm each other.
        return contextlib.nullcontext()

    def reading(self) -> contextlib.AbstractContextManager[None]:
        # What no backup needs any more stays for a day; manifests that go are passed over.
        return contextlib.nullcontext()

    def removing(self) -> contextlib.AbstractContextManager[bool]:
        return contextlib.nullcontext(True)

    def lies_in(self, directory: Path) -> bool:
        return False

    def is_empty(self) -> bool:
        with self.telling():
            return not any(batch for batch in obstore.list(self.store))

    def names(self, folder: str) -> list[str]:
        with self.telling():
            return sorted(found["path"] for batch in obstore.list(self.store, folder) for found in batch)

    def read(self, name: str) -> bytes | None:
        with self.telling():
            try:
                return bytes(obstore.get(self.store, name).bytes())
            except FileNotFoundError:
                return None

    def chunks(self, name: str) -> Iterator[Bytes] | None:
        with self.telling():
            try:
                stream = obstore.get(self.store, name).stream(min_chunk_size=CHUNK_SIZE)
            except FileNotFoundError:
                return None
        return self.stream_chunks(stream)

    def stream_chunks(self, stream: Iterable[Bytes]) -> Iterator[Bytes]:
        """Yield what comes of an object."""
        with self.telling():
            for chunk in stream:
                yield memoryview(chunk)

    def begin(self, name: str) -> ObjectWriter:
        return Upload(self, name)

    def create(self, name: str, data: bytes) -> bool:
        with self.telling():
            try:
                obstore.put(self.store, name, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
        return True

    def remove_unused(self, folder: str, used: Collection[str]) -> int:
        oldest = datetime.now(UTC) - UNUSED_AGE
        with self.telling():
            unused = [
                found["path"]
                for batch in obstore.list(self.store, folder)
                for found in batch
                if found["path"] not in used and found["last_modified"] < oldest
            ]
            if unused:
                obstore.delete(self.store, unused)
        return len(unused)

    def remove(self, name: str) -> None:
        with self.telling(), contextlib.suppress(FileNotFoundError):
            obstore.delete(self.store, name)


class Upload:
    """An object in the making; an object store shows it when its last part is there."""

    def __init__(self, target: ObjectTarget, name: str) -> None:
        self.target = target
        with target.telling():
            self.writer = obstore.open_writer(target.store, name, buffer_size=PART_SIZE, max_concurrency=PARTS_AT_ONCE)

    def write(self, data: Bytes) -> None:
        with self.target.telling():
            self.writer.write(data)

    def commit(self) -> None:
        with self.target.telling():
            self.writer.close()

    def abort(self) -> None:
        # Its parts stay unseen; the bucket's rule for incomplete uploads removes them.
        del self.writer


def split_options(storage_options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options of the store, and those of its connections, which the Delta library takes together."""
    config: dict[str, str] = {}
    client_options: dict[str, str] = {}
    for name, value in storage_options.items():
        bare = STORE_PREFIX.sub("", name.lower())
        if bare in CONNECTION_OPTIONS:
            client_options[bare] = value
        else:
            config[name] = value
    return config, client_options


def first_line(error: Exception) -> str:
    """Return the first line of an error's text."""
    return str(error).partition("\n")[0]
