"""OpenKeywords: the keyword arguments that `reput.open` and `reput.aopen` share, for editors and type checkers."""

from __future__ import annotations

import os
from collections.abc import Sequence

from reput.embedded.views import Mode
from reput.settings import Settings
from reput.settings.keywords import SettingKeywords

__all__ = ["OpenKeywords"]


class OpenKeywords(SettingKeywords, total=False):
    """Every setting, and how a store is opened. `open` documents them; a test compares the names with its signature."""

    dispatchers: Sequence[str] | None
    mode: Mode
    config: str | os.PathLike[str] | None
    settings: Settings | None
    hooks: Sequence[object]
    change_settings: Sequence[str]
    lock_timeout: float | None
