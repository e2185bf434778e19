"""SubscriptionGroups: the consumer groups of a store, and their permissions.

Source: RocketMQ broker, SubscriptionGroupManager.findSubscriptionGroupConfig; Validators.checkGroup.
"""

from __future__ import annotations

import re

import msgspec

from reput.argument_checks import require_whole
from reput.consume.registry.topics import QUEUE_NUMS_MAX
from reput.errors import RequestRefused
from reput.remoting.response_code import ResponseCode
from reput.settings import Settings
from reput.store.config.subscription_group_manager import SubscriptionGroupConfig, SubscriptionGroupManager

__all__ = ["SubscriptionGroups", "check_group", "is_system_group"]

LEGAL_GROUP = re.compile(r"[%|a-zA-Z0-9_-]+")
GROUP_SIZE_MAX = 255
INT_MAX = 2**31 - 1
# Groups are created by being named; when there are so many, none is any more.
GROUPS_MAX = 200_000
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
SYSTEM_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)


def is_system_group(group: str) -> bool:
    """Return whether RocketMQ's own programs consume as *group*."""
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def check_group(group: str) -> None:
    """Raise RequestRefused, INVALID_PARAMETER, unless *group* can be a group's name."""
    if not isinstance(group, str) or not LEGAL_GROUP.fullmatch(group):
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"group has an illegal character: group={group!r} legal=letters, digits, '%', '|', '_', '-'",
        )
    if len(group) > GROUP_SIZE_MAX:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"group is too long: group_size={len(group)} group_size_max={GROUP_SIZE_MAX}",
        )


class SubscriptionGroups:
    """The consumer groups of one store. Any thread may call.

    Args:
        persist: write every change to the file; False for a read-only store.
        keep_new_later: only `keep_new` writes groups that are created automatically. Each write replaces the whole
            file durably, and a group lost by a kill is created again at its next use.
    """

    def __init__(
        self,
        manager: SubscriptionGroupManager,
        settings: Settings,
        *,
        persist: bool = True,
        keep_new_later: bool = False,
    ) -> None:
        self.manager = manager
        self.settings = settings
        self.persist = persist
        self.keep_new_later = keep_new_later
        self.has_new = False

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """Return a group's configuration; ``auto_create_subscription_group`` creates missing ones. None: unknown."""
        config = self.manager.entries.get(group)
        if config is not None:
            return config
        if not (self.settings.auto_create_subscription_group or is_system_group(group)):
            return None
        try:
            check_group(group)
        except RequestRefused:
            return None
        with self.manager.lock:
            config = self.manager.entries.get(group)
            if config is None:
                if len(self.manager.entries) >= GROUPS_MAX:
                    return None
                config = SubscriptionGroupConfig(group_name=group)
                if self.keep_new_later:
                    self.manager.put(group, config)
                    self.has_new = True
                else:
                    self.keep(config)
            return config

    def keep_new(self) -> None:
        """Write automatically created groups to the file.

        Raises:
            StoreError: the file could not be written, and is unchanged.
        """
        with self.manager.lock:
            if self.has_new:
                self.manager.persist()
                self.has_new = False

    def require(self, group: str) -> SubscriptionGroupConfig:
        """Return a group's configuration.

        Raises:
            RequestRefused: SUBSCRIPTION_GROUP_NOT_EXIST; the group is unknown and may not be created.
        """
        config = self.find(group)
        if config is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"consumer group does not exist: group={group!r}",
                "Create it with `reput group create`, or set auto_create_subscription_group.",
            )
        return config

    def create_or_update(self, config: SubscriptionGroupConfig) -> None:
        """Create or change a group, durably.

        Raises:
            RequestRefused: INVALID_PARAMETER; RocketMQ refuses its name or a number.
        """
        check_group(config.group_name)
        for name, value, value_max in (
            ("retry_queue_nums", config.retry_queue_nums, QUEUE_NUMS_MAX),
            ("retry_max_times", config.retry_max_times, INT_MAX),
        ):
            require_whole(name, value, None)
            if not 0 <= value <= value_max:
                raise RequestRefused(
                    ResponseCode.INVALID_PARAMETER, f"a number lies between 0 and {value_max}: {name}={value}"
                )
        self.keep(config)

    def keep(self, config: SubscriptionGroupConfig) -> None:
        """Add *config* to the table, and write the table to its file."""
        with self.manager.lock:
            former = self.manager.entries.get(config.group_name)
            if former is not None:
                config = msgspec.structs.replace(config, unknown={**former.unknown, **config.unknown})
            self.manager.put(config.group_name, config)
            if self.persist:
                self.manager.persist()

    def forget(self, group: str) -> None:
        """Remove a group from the table and its file.

        Raises:
            RequestRefused: SUBSCRIPTION_GROUP_NOT_EXIST.
        """
        with self.manager.lock:
            if group not in self.manager.entries:
                raise RequestRefused(
                    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"consumer group does not exist: group={group!r}"
                )
            self.manager.remove(group)
            if self.persist:
                self.manager.persist()
