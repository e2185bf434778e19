"""Settings: RocketMQ's names with RocketMQ's defaults, from TOML, a broker's own file, the command line or Python.

    RocketMQ's defaults  <  what the store's files show  <  reput's record in the store
                         <  --config FILE  <  --set NAME=VALUE, keyword arguments

The record holds the settings that decide what the store's bytes mean. A later source may repeat such a setting; a
different value is refused unless the change is requested by name.

A name may be written as RocketMQ writes it (``flushDiskType``) or in snake case (``flush_disk_type``). Every value is
checked, and unknown names are refused.
"""

from __future__ import annotations

from reput.settings.loading import LoadedSettings, given_settings, load_settings, require_recorded
from reput.settings.settings import Settings

__all__ = ["LoadedSettings", "Settings", "given_settings", "load_settings", "require_recorded"]
