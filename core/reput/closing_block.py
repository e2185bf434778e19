"""ClosingBlock: ``with`` and ``async with`` for whatever is closed at the end of its block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from reput.in_thread import in_thread

__all__ = ["ClosingBlock"]


class ClosingBlock(ABC):
    """A base of stores, clients and consumers: entering a block returns the object, and leaving the block closes it."""

    @abstractmethod
    def close(self) -> None:
        """Close it. Closing it again does nothing."""

    async def aclose(self) -> None:
        """Like `close`, for a task."""
        await in_thread(self.close)

    @abstractmethod
    def _require_open(self) -> None:
        """Refuse calls after `close`.

        Raises:
            StoreClosed: it is closed.
        """

    def __enter__(self) -> Self:
        self._require_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()
