"""Quotas: what one topic, one consumer group or one client address may use of a broker.

    broker_quotas=topic=orders messages=1000 bytes=10M; topic=* messages=5000; group=billing bytes=20M;
        client=10.0.0.0/8 connections=50 in_flight=64M; client=* messages=2000

Each topic, group and address that a rule's pattern matches has the rule's numbers for itself. Of several rules of a
kind the first that matches holds. ``messages`` and ``bytes`` are rates: of what is sent to a topic, or by a client, and
of what a group is given. A rate is a bucket that holds one second's worth. One request may overdraw it, so that a batch
of any size passes; the next ones are refused until that is made up for.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Iterator
from fnmatch import fnmatchcase

import msgspec

from reput.errors import ConfigError
from reput.token_bucket import TokenBucket

__all__ = ["QuotaSubject", "Quotas", "parse_quotas"]

KINDS = ("topic", "group", "client")
RATES = ("messages", "bytes")
CLIENT_LIMITS = ("connections", "in_flight")
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# Names that clients make up must not fill the memory. Those that are not full of tokens are remembered.
SUBJECTS_MAX = 10_000
# Longer ones are refused as names of topics and groups.
NAME_SIZE_MAX = 255
WARNING_INTERVAL_S = 60.0
DIGITS_END = 19

logger = logging.getLogger(__name__)


class QuotaRule(msgspec.Struct, frozen=True):
    """One rule. None: no limit."""

    kind: str
    pattern: str
    messages: int | None = None
    bytes: int | None = None
    connections: int | None = None
    in_flight: int | None = None

    def matches(self, name: str) -> bool:
        """Return whether the rule holds for a topic, group or address."""
        if self.kind != "client" or self.pattern == "*":
            return fnmatchcase(name, self.pattern)
        try:
            address = ipaddress.ip_address(name)
            # A listener of IPv6 sees clients of IPv4 so.
            mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
            return (mapped or address) in ipaddress.ip_network(self.pattern, strict=False)
        except ValueError:
            return False


class QuotaSubject:
    """One topic, group or client address with a rule.

    Attributes:
        connections, in_flight: what a client address has now.
        refused: requests that were refused, or answered later.
    """

    __slots__ = ("bytes", "connections", "in_flight", "messages", "name", "refused", "rule", "warned_at")

    def __init__(self, rule: QuotaRule, name: str, now: float) -> None:
        self.rule = rule
        self.name = name
        self.messages = None if rule.messages is None else TokenBucket(rule.messages, now)
        self.bytes = None if rule.bytes is None else TokenBucket(rule.bytes, now)
        self.connections = 0
        self.in_flight = 0
        self.refused = 0
        self.warned_at: float | None = None

    def exhausted(self, now: float) -> str | None:
        """Return the name of the rate that is used up now; None: none is."""
        if self.messages is not None and self.messages.wait(now) > 0:
            return "messages"
        if self.bytes is not None and self.bytes.wait(now) > 0:
            return "bytes"
        return None

    def wait(self, now: float) -> float:
        """Return the seconds until no rate is used up."""
        return max((bucket.wait(now) for bucket in (self.messages, self.bytes) if bucket is not None), default=0.0)

    def take(self, count: int, size: int) -> None:
        """Count messages and their bytes."""
        if self.messages is not None:
            self.messages.level -= count
        if self.bytes is not None:
            self.bytes.level -= size

    def refuse(self, limit: str, now: float) -> str:
        """Count a refusal, log the first of each minute, and return what is exceeded."""
        self.refused += 1
        text = f"{self.rule.kind}={self.name} {limit}_max={getattr(self.rule, limit)}"
        if self.warned_at is None or now - self.warned_at >= WARNING_INTERVAL_S:
            self.warned_at = now
            logger.warning("a quota is exceeded: %s refused=%d", text, self.refused)
        return text

    def is_idle(self, now: float) -> bool:
        """Return whether nothing would be lost if it were forgotten."""
        return not (self.connections or self.in_flight or self.refused) and all(
            bucket.is_full(now) for bucket in (self.messages, self.bytes) if bucket is not None
        )


class Quotas:
    """The quotas of one broker. Used in the thread of its loop; others may read the counts."""

    def __init__(self, rules: list[QuotaRule]) -> None:
        self.rules = {kind: [rule for rule in rules if rule.kind == kind] for kind in KINDS}
        self.subjects: dict[tuple[str, str], QuotaSubject] = {}
        # What was refused to those that are forgotten since: a count that went back would look like a restart.
        self.refused_before = dict.fromkeys(KINDS, 0)

    def __bool__(self) -> bool:
        return any(self.rules.values())

    def subject(self, kind: str, name: str, now: float) -> QuotaSubject | None:
        """Return a topic, group or address with its rule; None: it has none."""
        found = self.subjects.get((kind, name))
        if found is None:
            if len(name) > NAME_SIZE_MAX:
                return None
            rule = next((rule for rule in self.rules[kind] if rule.matches(name)), None)
            if rule is None:
                return None
            if len(self.subjects) >= SUBJECTS_MAX:
                self.forget_idle(now)
            found = self.subjects[kind, name] = QuotaSubject(rule, name, now)
        return found

    def forget_idle(self, now: float) -> None:
        """Forget those that use nothing; if all do, those without connections and requests that were met first."""
        idle = [key for key, subject in self.subjects.items() if subject.is_idle(now)]
        if not idle:
            unused = (key for key, subject in self.subjects.items() if not (subject.connections or subject.in_flight))
            idle = [key for key, _ in zip(unused, range(SUBJECTS_MAX // 10), strict=False)]
        for key in idle:
            forgotten = self.subjects.pop(key)
            self.refused_before[forgotten.rule.kind] += forgotten.refused

    def biting(self) -> Iterator[QuotaSubject]:
        """Yield those that something was refused to, most first."""
        yield from sorted(
            (subject for subject in list(self.subjects.values()) if subject.refused),
            key=lambda subject: -subject.refused,
        )

    @property
    def refused(self) -> int:
        """How many requests and connections were refused or answered later."""
        return sum(self.refused_by_kind().values())

    def refused_by_kind(self) -> dict[str, int]:
        """Return the same for each kind of rule that there is."""
        counts = {kind: self.refused_before[kind] for kind, rules in self.rules.items() if rules}
        for subject in list(self.subjects.values()):
            counts[subject.rule.kind] += subject.refused
        return counts


def parse_quotas(text: str) -> Quotas:
    """Return the quotas that the setting ``broker_quotas`` describes.

    Raises:
        ConfigError: a rule is malformed; the error quotes it.
    """
    return Quotas([parse_rule(rule.strip()) for rule in text.split(";") if rule.strip()])


def parse_rule(text: str) -> QuotaRule:
    """Return one rule, such as ``topic=orders messages=1000``.

    Raises:
        ConfigError: the rule is malformed.
    """
    (kind, pattern), *limits = [word.partition("=")[::2] for word in text.split()]
    if kind not in KINDS or not pattern or not limits:
        raise wrong(text, "a rule begins with topic=, group= or client=, and has a limit")
    if kind == "client" and pattern != "*":
        try:
            ipaddress.ip_network(pattern, strict=False)
        except ValueError:
            raise wrong(text, "client takes an address, a network like 10.0.0.0/8, or *") from None
    allowed = (*RATES, *CLIENT_LIMITS) if kind == "client" else RATES
    numbers: dict[str, int] = {}
    for name, value in limits:
        digits, unit = (value[:-1], value[-1]) if value[-1:] in ("K", "M", "G") else (value, "")
        if name not in allowed or name in numbers:
            raise wrong(text, f"{kind} takes once each: {', '.join(allowed)}")
        if not (digits.isascii() and digits.isdigit() and len(digits) < DIGITS_END and int(digits)):
            raise wrong(text, f"{name} takes a number above 0, perhaps with K, M or G")
        numbers[name] = int(digits) * UNITS[unit]
    return QuotaRule(kind, pattern, **numbers)


def wrong(rule: str, reason: str) -> ConfigError:
    """Return the error for a rule."""
    return ConfigError(
        f"a quota is wrong: broker_quotas={rule!r} reason={reason!r}",
        "Write rules like: topic=orders messages=1000 bytes=10M; client=* connections=50.",
    )
