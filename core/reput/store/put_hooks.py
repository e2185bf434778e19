"""HookedMessageStore: a writer that calls hooks before and after each put. Only programs that ask for them have one."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import pluggy

import reput_hooks.store_hooks
from reput.errors import ConfigError, MessageIllegal, StoreError
from reput.settings import Settings
from reput.store.message_store import MessageStore
from reput.store.record.message import Message, PutMessageResult
from reput.store.writer.appender import Admitted, Appender
from reput.store.writer.message_preparer import MessagePreparer
from reput.store.writer.store_files import StoreFiles

__all__ = ["HookedMessageStore"]

PROJECT = "reput"
logger = logging.getLogger(__name__)


class HookedMessageStore(MessageStore):
    """A `MessageStore` with hooks: every put goes through them."""

    def __init__(
        self,
        directory: Path,
        settings: Settings,
        hooks: Sequence[object],
        *,
        change_settings: Collection[str] = (),
        lock_timeout: float | None = 0.0,
    ) -> None:
        """*hooks*: modules or objects with functions that `reput_hooks.hookimpl` marks.

        Raises:
            ConfigError: one of them has no hook, or one of a wrong name or argument.
            As `MessageStore`.
        """
        self.hook = load_hooks(hooks)
        super().__init__(directory, settings, change_settings=change_settings, lock_timeout=lock_timeout)

    def make_appender(self) -> Appender:
        """Return what appends to the log, through the hooks."""
        return HookedAppender(self.store_files, self.preparer, self.hook)


class HookedAppender(Appender):
    """An `Appender` that calls *hook*, the hooks of one store, before and after each put."""

    def __init__(self, store_files: StoreFiles, preparer: MessagePreparer, hook: Any) -> None:
        super().__init__(store_files, preparer)
        self.hook = hook
        # One after the other, each with the message that the one before returned; pluggy would give all of them the
        # same message.
        self.before_put = hook.reput_before_put.get_hookimpls()[::-1]

    def append(self, message: Message) -> PutMessageResult:
        """Store one message as `put` does, without waiting for the disk."""
        message = self.to_store(message)
        result = super().append(message)
        self.tell_stored(message, result)
        return result

    def append_batch(self, messages: Iterable[Message]) -> list[PutMessageResult]:
        """Store *messages* as `put_batch` does, without waiting for the disk."""
        batch = [self.to_store(message) for message in messages]
        results = super().append_batch(batch)
        for message, result in zip(batch, results, strict=True):
            self.tell_stored(message, result)
        return results

    def admit(self, message: Message) -> tuple[Message, Admitted]:
        """Check and encode *message* for `append_each`; return what will be stored, and that encoded."""
        return super().admit(self.to_store(message))

    def append_each(
        self, messages: Sequence[Message | None], admitted: list[Admitted]
    ) -> Sequence[PutMessageResult | StoreError]:
        """Store *messages*, admitted as *admitted*, each as a put of its own, without waiting for the disk."""
        outcomes = super().append_each(messages, admitted)
        for message, outcome in zip(messages, outcomes, strict=True):
            if isinstance(outcome, PutMessageResult) and message is not None:
                self.tell_stored(message, outcome)
        return outcomes

    def to_store(self, message: Message) -> Message:
        """Return the message that the hooks before a put leave in the place of *message*.

        Raises:
            MessageIllegal: a hook returned something that is not a message.
            Anything that a hook raises, to refuse the put.
        """
        for hook in self.before_put:
            replacement = hook.function(*[message for _ in hook.argnames])
            if replacement is None:
                continue
            if not isinstance(replacement, Message):
                raise MessageIllegal(
                    f"a hook returned something that is not a message: type={type(replacement).__name__} "
                    f"hook={hook.plugin!r}",
                    "reput_before_put returns a reput.Message, or None to leave the message as it is.",
                )
            message = replacement
        return message

    def tell_stored(self, message: Message, result: PutMessageResult) -> None:
        """Call the hooks after a put. Their errors are logged: the message is stored."""
        try:
            self.hook.reput_after_put(message=message, result=result)
        except Exception:
            logger.exception(
                "a hook failed after a put, whose message is stored: topic=%s commit_log_offset=%d",
                message.topic,
                result.commit_log_offset,
            )


def load_hooks(hooks: Sequence[object]) -> Any:
    """Return the hooks of all *hooks*, which are called in the reverse of their order, as pluggy does.

    Raises:
        ConfigError: one of them is not usable.
    """
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(reput_hooks.store_hooks)
    for plugin in hooks:
        try:
            manager.register(plugin)
            manager.check_pending()
        except (pluggy.PluginValidationError, ValueError) as error:
            raise ConfigError(
                f"a hook is not valid: hooks={plugin!r} reason={error}",
                "Hooks are reput_before_put(message) and reput_after_put(message, result), marked with hookimpl.",
            ) from None
        if not manager.get_hookcallers(plugin):
            raise ConfigError(
                f"the plugin has no hook: hooks={plugin!r}",
                "Mark reput_before_put or reput_after_put with reput_hooks.hookimpl.",
            )
    for hook in manager.hook.reput_before_put.get_hookimpls():
        if hook.wrapper or hook.hookwrapper:
            raise ConfigError(
                f"a hook before a put cannot be a wrapper: hooks={hook.plugin!r}",
                "Use reput_before_put for the message, and reput_after_put for the result.",
            )
    return manager.hook
