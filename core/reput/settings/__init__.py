"""Settings: RocketMQ's names with RocketMQ's defaults, from TOML, a broker's own file, the command line or Python.

    RocketMQ's defaults  <  what the store's files show  <  reput's record in the store
                         <  --config FILE  <  --set NAME=VALUE, keyword arguments

The record holds the settings that decide what the store's bytes mean. A later source may repeat such a setting; a
different value is refused unless the change is requested by name.

A name may be written as RocketMQ writes it (``flushDiskType``) or in snake case (``flush_disk_type``). Every value is
checked, and unknown names are refused.

Names are imported on first use: a group's processes need the settings, but never their sources.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reput.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from reput.settings.loading import LoadedSettings as LoadedSettings
    from reput.settings.loading import given_settings as given_settings
    from reput.settings.loading import load_settings as load_settings
    from reput.settings.loading import require_recorded as require_recorded
    from reput.settings.settings import Settings as Settings
else:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
