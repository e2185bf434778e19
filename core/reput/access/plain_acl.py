"""PlainAcl: the accounts of RocketMQ 4, as ``plain_acl.yml`` describes them.

    globalWhiteRemoteAddresses: [10.10.103.*]
    accounts:
      - accessKey: orders-service
        secretKey: "12345678"
        whiteRemoteAddress:                 # from here without a signature
        admin: false
        defaultTopicPerm: DENY              # DENY, PUB, SUB, PUB|SUB or ANY
        defaultGroupPerm: SUB
        topicPerms: [orders=PUB|SUB, audit=DENY]
        groupPerms: [billing=SUB]

Source: RocketMQ acl, PlainPermissionManager, PlainAccessConfig and Permission.
"""

from __future__ import annotations

import msgspec

from reput.access.addresses import AddressMatcher, address_matcher
from reput.access.request_needs import ADMIN_CODES, NAME_SERVER_WRITES, PUB, SUB, Need, needs_of
from reput.access.signature import ACCESS_KEY, is_signed
from reput.errors import ConfigError, RequestRefused
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.response_code import ResponseCode

__all__ = ["PlainAcl"]

DENY, ANY = 1, 2
PERMISSIONS = {"DENY": DENY, "ANY": ANY | PUB | SUB, "PUB": PUB, "SUB": SUB, "PUB|SUB": PUB | SUB, "SUB|PUB": PUB | SUB}
KEY_SIZE_MIN = 7
RETRY_PREFIX = "%RETRY%"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"


class AccountFields(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """One account as the file describes it."""

    access_key: str
    secret_key: str
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: list[str] | None = None
    group_perms: list[str] | None = None


class AclFields(msgspec.Struct, rename="camel"):
    """``plain_acl.yml``. Other members, which RocketMQ writes, are ignored."""

    global_white_remote_addresses: list[str] | None = None
    accounts: list[AccountFields] | None = None


class Account:
    """One account.

    Attributes:
        topics, groups: permissions by name; None: no permissions are listed, and an administrator passes everywhere.
    """

    def __init__(self, fields: AccountFields, path: str) -> None:
        """Check an account.

        Raises:
            ConfigError: a key is too short, or a permission or an address is not valid.
        """
        self.access_key = fields.access_key
        self.secret_key = fields.secret_key.encode()
        for name, value in (("accessKey", fields.access_key), ("secretKey", fields.secret_key)):
            if len(value) < KEY_SIZE_MIN:
                raise ConfigError(
                    f"a key must have at least {KEY_SIZE_MIN} characters: acl_file={path} account={self.access_key!r} "
                    f"{name}_size={len(value)}"
                )
        source = f"acl_file={path} account={self.access_key} "
        self.is_white = address_matcher([fields.white_remote_address or ""], source + "whiteRemoteAddress")
        self.is_admin = fields.admin
        self.default_topic = permission_of(fields.default_topic_perm, source + "defaultTopicPerm")
        self.default_group = permission_of(fields.default_group_perm, source + "defaultGroupPerm")
        self.topics = permissions_of(fields.topic_perms, source + "topicPerms")
        self.groups = {
            name.removeprefix(RETRY_PREFIX): permission
            for name, permission in permissions_of(fields.group_perms, source + "groupPerms").items()
        }
        self.passes_all = self.is_admin and not self.topics and not self.groups

    def has(self, need: Need) -> bool:
        """Return whether the account has a permission."""
        if need.is_group:
            owned = self.groups.get(need.name, self.default_group)
        else:
            owned = self.topics.get(need.name, self.default_topic)
        return not owned & DENY and bool(owned & need.permission)


class PlainAcl:
    """The accounts of one file at the time of reading."""

    def __init__(self, data: object, path: str) -> None:
        """Check the file's content.

        Raises:
            ConfigError: the file does not describe accounts.
        """
        try:
            fields = msgspec.convert(data or {}, AclFields, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError(f"the file does not describe accounts: acl_file={path} reason={error}") from None
        self.accounts: dict[str, Account] = {}
        for account in fields.accounts or ():
            if account.access_key in self.accounts:
                raise ConfigError(f"an account is described twice: acl_file={path} accessKey={account.access_key}")
            self.accounts[account.access_key] = Account(account, path)
        self.is_white: AddressMatcher | None = address_matcher(
            fields.global_white_remote_addresses or (), f"acl_file={path} globalWhiteRemoteAddresses"
        )

    def check(self, request: RemotingCommand, host: str) -> None:
        """Refuse a request that its sender, at the IP address *host*, is not allowed to make.

        Raises:
            RequestRefused: SYSTEM_ERROR, as in RocketMQ 4.
        """
        if self.is_white is not None and self.is_white(host):
            return
        access_key = request.ext_fields.get(ACCESS_KEY)
        if not access_key:
            raise refused("No accessKey is configured")
        account = self.accounts.get(access_key)
        if account is None:
            raise refused(f"No acl config for {access_key:.100}")
        if account.is_white is not None and account.is_white(host):
            return
        if not is_signed(request, account.secret_key):
            raise refused(f"Check signature failed for accessKey={access_key}")
        if not account.is_admin and (request.code in ADMIN_CODES or request.code in NAME_SERVER_WRITES):
            raise refused(f"Need admin permission for request code={request.code}, but accessKey={access_key} is not")
        for need in needs_of(request):
            check_permission(account, need)

    def check_need(self, request: RemotingCommand, host: str, need: Need) -> None:
        """Refuse a request that has passed `check` if its sender lacks one more permission.

        Raises:
            RequestRefused: SYSTEM_ERROR.
        """
        if self.is_white is not None and self.is_white(host):
            return
        access_key = request.ext_fields.get(ACCESS_KEY, "")
        account = self.accounts.get(access_key)
        if account is None:
            # The file has changed since `check`.
            raise refused(f"No acl config for {access_key:.100}")
        if account.is_white is None or not account.is_white(host):
            check_permission(account, need)


def check_permission(account: Account, need: Need) -> None:
    """Refuse a request whose account lacks a permission.

    Raises:
        RequestRefused: SYSTEM_ERROR.
    """
    if not account.passes_all and not account.has(need) and need != (TRACE_TOPIC, PUB, False):
        kind = "group" if need.is_group else "topic"
        raise refused(f"No permission for {kind} {need.name:.255} with accessKey={account.access_key}")


def refused(text: str) -> RequestRefused:
    """Return the refusal of a request."""
    return RequestRefused(ResponseCode.SYSTEM_ERROR, text, "Check the client's keys and the broker's accounts.")


def permission_of(text: str | None, source: str) -> int:
    """Return a permission; a missing one is DENY.

    Raises:
        ConfigError: the text is not a permission.
    """
    name = (text or "DENY").replace(" ", "")
    if name not in PERMISSIONS:
        raise ConfigError(f"a permission must be DENY, ANY, PUB, SUB or PUB|SUB: {source}={text!r}")
    return PERMISSIONS[name]


def permissions_of(texts: list[str] | None, source: str) -> dict[str, int]:
    """Return the permissions of a list of ``name=permission``.

    Raises:
        ConfigError: one of the texts has another form.
    """
    found = {}
    for text in texts or ():
        name, equals, permission = text.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"a permission must have the form NAME=PERMISSION: {source}={text!r}")
        found[name.strip()] = permission_of(permission.strip(), source)
    return found
