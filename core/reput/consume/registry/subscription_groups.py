"""SubscriptionGroups: which consumer groups there are, and what they may do.

Source: RocketMQ broker, SubscriptionGroupManager.findSubscriptionGroupConfig; Validators.checkGroup.
"""

from __future__ import annotations

import re

import msgspec

from reput.argument_checks import require_whole
from reput.consume.registry.response_code import ResponseCode
from reput.errors import RequestRefused
from reput.settings import Settings
from reput.store.config.subscription_group_manager import SubscriptionGroupConfig, SubscriptionGroupManager

__all__ = ["SubscriptionGroups", "check_group"]

LEGAL_GROUP = re.compile(r"[%|a-zA-Z0-9_-]+")
GROUP_SIZE_MAX = 255
INT_MAX = 2**31 - 1
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
        persist: keep every change in the file; False for a store that is only read.
        keep_new_later: a group that is made when it is met is kept by `keep_new` only. The file is written as a whole,
            and durably, and what a kill takes of such groups is made again when they are met.
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
        """Return what is known of a group; with ``auto_create_subscription_group`` it is made when it is met."""
        config = self.manager.entries.get(group)
        if config is not None:
            return config
        system = group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)
        if not (self.settings.auto_create_subscription_group or system):
            return None
        try:
            check_group(group)
        except RequestRefused:
            return None
        with self.manager.lock:
            config = self.manager.entries.get(group)
            if config is None:
                config = SubscriptionGroupConfig(group_name=group)
                if self.keep_new_later:
                    self.manager.put(group, config)
                    self.has_new = True
                else:
                    self.keep(config)
            return config

    def keep_new(self) -> None:
        """Write the groups that were met to the file.

        Raises:
            OSError: it holds what it held before.
        """
        with self.manager.lock:
            if self.has_new:
                self.manager.persist()
                self.has_new = False

    def require(self, group: str) -> SubscriptionGroupConfig:
        """Return what is known of a group.

        Raises:
            RequestRefused: SUBSCRIPTION_GROUP_NOT_EXIST; it is unknown and may not be made.
        """
        config = self.find(group)
        if config is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"consumer group does not exist: group={group!r}",
                "Make it with `reput group create`, or set auto_create_subscription_group.",
            )
        return config

    def create_or_update(self, config: SubscriptionGroupConfig) -> None:
        """Have a group be as *config* says, durably.

        Raises:
            RequestRefused: INVALID_PARAMETER; its name or a number is one that RocketMQ refuses.
        """
        check_group(config.group_name)
        for name, value in (
            ("retry_queue_nums", config.retry_queue_nums),
            ("retry_max_times", config.retry_max_times),
        ):
            require_whole(name, value, None)
            if not 0 <= value <= INT_MAX:
                raise RequestRefused(
                    ResponseCode.INVALID_PARAMETER, f"a number lies between 0 and {INT_MAX}: {name}={value}"
                )
        self.keep(config)

    def keep(self, config: SubscriptionGroupConfig) -> None:
        """Take *config* into the table, and the table into its file."""
        with self.manager.lock:
            former = self.manager.entries.get(config.group_name)
            if former is not None:
                config = msgspec.structs.replace(config, unknown={**former.unknown, **config.unknown})
            self.manager.put(config.group_name, config)
            if self.persist:
                self.manager.persist()

    def forget(self, group: str) -> None:
        """Take a group out of the table and its file.

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
