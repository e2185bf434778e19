"""Auth: users and policies as in RocketMQ 5, from a file in reput's own format.

    users:
      - {username: admin, password: "12345678", type: Super}
      - {username: orders, password: "87654321"}
    policies:
      - subject: User:orders
        resources: ["Topic:orders*", "Group:billing"]   # literal, prefix*, or "*" for all
        actions: [Pub, Sub]                             # Pub, Sub, All
        sources: ["192.168.0.*"]                        # none: from everywhere
        decision: Allow                                 # or Deny

The policy with the most exact resource decides: a literal name before a longer prefix before a shorter one. Of equally
exact policies, Deny wins. What no policy names is denied. Users of the type Super may do everything, and only they may
administrate.

Source: RocketMQ auth, User, Acl, AclAuthorizationHandler and DefaultAuthorizationContextBuilder.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from reput.access.addresses import AddressMatcher, address_matcher
from reput.access.request_needs import (
    ADMIN_CODES,
    NAME_SERVER_WRITES,
    PUB,
    SUB,
    Need,
    more_needs_of,
    needs_of,
)
from reput.access.signature import ACCESS_KEY, is_signed
from reput.errors import ConfigError, RequestRefused
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.response_code import ResponseCode

__all__ = ["Auth"]

ACTIONS = {"Pub": PUB, "Sub": SUB, "All": PUB | SUB}


class UserFields(msgspec.Struct, forbid_unknown_fields=True):
    """One user as the file describes it."""

    username: str
    password: str
    type: Literal["Super", "Normal"] = "Normal"
    status: Literal["enable", "disable"] = "enable"


class PolicyFields(msgspec.Struct, forbid_unknown_fields=True):
    """One policy as the file describes it."""

    subject: str
    resources: list[str]
    actions: list[Literal["Pub", "Sub", "All"]]
    decision: Literal["Allow", "Deny"] = "Allow"
    sources: list[str] = []


class AuthFields(msgspec.Struct, forbid_unknown_fields=True):
    """The file."""

    users: list[UserFields] = []
    policies: list[PolicyFields] = []


class Rule(msgspec.Struct, frozen=True):
    """What one policy says about one resource.

    Attributes:
        is_group: whether the resource is a group; None: both topics and groups.
        name: the literal name, or the prefix.
    """

    is_group: bool | None
    name: str
    is_prefix: bool
    actions: int
    is_denied: bool
    is_source: AddressMatcher | None

    def matches(self, need: Need, host: str) -> bool:
        """Return whether the rule applies to a need."""
        if self.is_group not in (None, need.is_group) or not self.actions & need.permission:
            return False
        if not (need.name.startswith(self.name) if self.is_prefix else need.name == self.name):
            return False
        return self.is_source is None or self.is_source(host)

    @property
    def rank(self) -> tuple[bool, int, bool]:
        """How exact the rule is; the rule with the highest rank decides."""
        return not self.is_prefix, len(self.name), self.is_denied


class Auth:
    """The users and policies of one file at the time of reading."""

    def __init__(self, data: object, path: str, *, authorizes: bool) -> None:
        """Check the file's content. With *authorizes*, policies are enforced, not only passwords.

        Raises:
            ConfigError: the file does not describe users.
        """
        try:
            fields = msgspec.convert(data or {}, AuthFields)
        except msgspec.ValidationError as error:
            raise ConfigError(f"the file does not describe users: auth_file={path} reason={error}") from None
        self.authorizes = authorizes
        self.users = {user.username: user for user in fields.users}
        if len(self.users) != len(fields.users):
            raise ConfigError(f"a user is described twice: auth_file={path}")
        self.secrets = {user.username: user.password.encode() for user in fields.users}
        self.rules: dict[str, list[Rule]] = {}
        for policy in fields.policies:
            kind, _, username = policy.subject.partition(":")
            if kind != "User" or username not in self.users:
                raise ConfigError(f"a policy's subject must be User:NAME: auth_file={path} subject={policy.subject!r}")
            self.rules.setdefault(username, []).extend(rules_of(policy, path))
        for rules in self.rules.values():
            rules.sort(key=lambda rule: rule.rank, reverse=True)

    def check(self, request: RemotingCommand, host: str) -> None:
        """Refuse a request that its sender, at the IP address *host*, is not allowed to make.

        Raises:
            RequestRefused: NO_PERMISSION, as in RocketMQ 5.
        """
        username = request.ext_fields.get(ACCESS_KEY, "")
        user = self.users.get(username)
        if user is None or user.status == "disable":
            raise refused(f"User:{username:.100} is not found." if username else "username cannot be null.")
        if not is_signed(request, self.secrets[username]):
            raise refused("check signature failed.")
        if not self.authorizes or user.type == "Super":
            return
        if request.code in ADMIN_CODES or request.code in NAME_SERVER_WRITES:
            raise refused(f"User:{username} has no permission to administrate: code={request.code}")
        for need in (*needs_of(request), *more_needs_of(request)):
            self.check_permission(username, host, need)

    def check_need(self, request: RemotingCommand, host: str, need: Need) -> None:
        """Refuse a request that has passed `check` if its sender lacks one more permission.

        Raises:
            RequestRefused: NO_PERMISSION.
        """
        username = request.ext_fields.get(ACCESS_KEY, "")
        user = self.users.get(username)
        if self.authorizes and (user is None or user.type != "Super"):
            self.check_permission(username, host, need)

    def check_permission(self, username: str, host: str, need: Need) -> None:
        """Refuse a request whose user lacks a permission.

        Raises:
            RequestRefused: NO_PERMISSION.
        """
        rule = next((rule for rule in self.rules.get(username, ()) if rule.matches(need, host)), None)
        if rule is None or rule.is_denied:
            kind = "Group" if need.is_group else "Topic"
            raise refused(f"User:{username} has no permission to access {kind}:{need.name:.255} from {host}.")


def rules_of(policy: PolicyFields, path: str) -> list[Rule]:
    """Return the rules of a policy.

    Raises:
        ConfigError: a resource or a source is not valid.
    """
    actions = 0
    for action in policy.actions:
        actions |= ACTIONS[action]
    is_source = address_matcher(policy.sources, f"auth_file={path} sources")
    rules = []
    for resource in policy.resources:
        kind, colon, name = resource.partition(":")
        if resource == "*":
            is_group, name = None, "*"
        elif colon and name and kind in ("Topic", "Group"):
            is_group = kind == "Group"
        else:
            raise ConfigError(
                f"a resource must be Topic:NAME, Group:NAME or *: auth_file={path} resource={resource!r}",
                "A name may end with *, which stands for all names with this beginning.",
            )
        is_prefix = name.endswith("*")
        rules.append(Rule(is_group, name.removesuffix("*"), is_prefix, actions, policy.decision == "Deny", is_source))
    return rules


def refused(text: str) -> RequestRefused:
    """Return the refusal of a request."""
    return RequestRefused(ResponseCode.NO_PERMISSION, text, "Check the client's keys and the broker's users.")
