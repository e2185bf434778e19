"""FollowKeywords: the keyword arguments of `reput.follow` and `reput.afollow`, for editors and type checkers."""

from __future__ import annotations

import os
import ssl

from reput.embedded.views import Mode
from reput.replication.copy_preparation import Beginning
from reput.settings.keywords import SettingKeywords

__all__ = ["FollowKeywords"]


class FollowKeywords(SettingKeywords, total=False):
    """Every setting, and how a master is followed. `follow` documents them; a test compares the names with it."""

    name_server: str | None
    broker: str | None
    begin: Beginning
    discard: bool
    mode: Mode
    config: str | os.PathLike[str] | None
    lock_timeout: float | None
    tls: ssl.SSLContext | str | os.PathLike[str] | None
    access_key: str | None
    secret_key: str | None
