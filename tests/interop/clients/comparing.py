"""What clients see at two brokers, compared line by line; known differences between RocketMQ's versions left out."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from interop.clients.java_clients import Outcome

__all__ = ["differences"]

# reput answers as version 5.3 does. Scenario, what a line says, what is compared instead.
KNOWN = {
    "4.": (
        # Version 5 adds properties to a message, and version 4's client leaves out a WAIT that is true.
        ("", r"(MSG_REGION=DefaultRegion|TRACE_ON=true|WAIT=true|__transactionId__=\*)(, )?", ""),
        ("", r", \}", "}"),
        ("", r"transactionId=(null|[\d,]+)", "transactionId=*"),
        ("transaction", r"(SEND_OK \w+) (\d+) (null false|\d+ true)", r"\1 \2"),
        # A queue that does not exist is an invalid parameter (29), not an error (1).
        ("send-refused", r"refused (1|29)$", "refused 1 or 29"),
        # An empty queue has no offset of a group: QUERY_NOT_FOUND, not 0.
        ("pull", r"committed 0 (0|-1)", "committed 0 0 or -1"),
        # Behind the last message lies the queue's end, not the last message.
        ("offsets", r"far ahead [45]", "far ahead 4 or 5"),
        # A dead letter of an orderly consumer is not delayed.
        ("retry-orderly", r"DELAY=(-1|4), |REAL_QID=0, |REAL_TOPIC=%DLQ%G-retry-orderly, ", ""),
        # CONTAINS is of version 5.
        ("consume-sql", r"colour CONTAINS .*", "colour CONTAINS"),
    ),
    "5.5": (
        # Version 5.5 takes the real topic and queue from a message that is committed.
        ("transaction", r"^(  .*)REAL_QID=\*, REAL_TOPIC=T-[a-z-]+, ", r"\1"),
        # Version 5.5 adds no properties to the messages of a batch.
        ("send-batch", r"(CLUSTER=DefaultCluster|MSG_REGION=DefaultRegion|TRACE_ON=true), ", ""),
    ),
}


def differences(version: str, real: Mapping[str, Outcome], reput: Mapping[str, Outcome]) -> str:
    """Return how what clients saw at reput differs from what they saw at RocketMQ's *version*; "": it does not."""
    assert real.keys() == reput.keys()
    return "\n".join(filter(None, (difference(version, name, real[name], reput[name]) for name in real)))


def difference(version: str, name: str, real: Outcome, reput: Outcome) -> str:
    """Return how a scenario went differently."""
    errors = [f"{name} failed at {at}: {one.error}" for at, one in (("RocketMQ", real), ("reput", reput)) if one.error]
    lines = difflib.unified_diff(
        comparable(version, name, real),
        comparable(version, name, reput),
        f"{name} at RocketMQ",
        "at reput",
        lineterm="",
    )
    return "\n".join([*errors, *lines])


def comparable(version: str, name: str, outcome: Outcome) -> list[str]:
    """Return the lines of a scenario as they are compared."""
    lines = outcome.lines
    for of_versions, known in KNOWN.items():
        for scenario, pattern, replacement in known if version.startswith(of_versions) else ():
            if name.startswith(scenario):
                lines = [re.sub(pattern, replacement, line) for line in lines]
    return lines
