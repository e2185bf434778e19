"""new_uniq_key: the message id that a client gives, 32 upper-case hex digits.

    at  size  field
     0     4  IPv4 address of the host; here the born host of messages
     4     2  process id, its low 16 bits
     6     4  tells programs with the same process id apart: a hash in Java, a random number in reput
    10     4  ms since the local month began
    14     2  counter

Source: RocketMQ client, MessageClientIDSetter.
"""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta
from itertools import count
from random import SystemRandom
from struct import Struct
from typing import NamedTuple

__all__ = ["new_uniq_key"]

FIELDS = Struct(">4sHIIH")
PROGRAM = SystemRandom().randrange(1 << 32)
numbers = count()


class Month(NamedTuple):
    """A month of local time, in seconds since 1970."""

    begin: float
    end: float

    @classmethod
    def of(cls, now: float) -> Month:
        """Return the month of a time."""
        begin = datetime.fromtimestamp(now).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        # Every month has a 28th day, and four days later the next has begun.
        end = (begin.replace(day=28) + timedelta(days=4)).replace(day=1)
        return cls(begin.timestamp(), end.timestamp())


# Of the last id: finding a month takes longer than all the rest.
last_month = Month(0.0, 0.0)


def new_uniq_key(born_host: bytes) -> str:
    """Return a unique id. *born_host* is in its stored form; of an IPv6 address only the last four bytes count."""
    global last_month
    now = time.time()
    month = last_month
    if not month.begin <= now < month.end:
        month = last_month = Month.of(now)
    return (
        FIELDS.pack(
            born_host[:-4][-4:],
            os.getpid() & 0xFFFF,
            PROGRAM,
            int((now - month.begin) * 1000) & 0xFFFFFFFF,
            next(numbers) & 0xFFFF,
        )
        .hex()
        .upper()
    )
