"""CatchUpPace: when followers that are far behind get the log, so that puts go first.

    │◀───────────── a cycle ─────────────▶│
    │ they get the log  │ they get nothing │    if the log grows more slowly in the first part, they cost the puts
    └─ OPEN, SETTLING ──┴─ SHUT ───────────┘    so much while they get the log

SETTLING lasts until they have acknowledged what they got: what lies in their buffers keeps them and their disks busy.

A follower that catches up takes processors, disk and network, and which of these the producers lack is not known. So
what they lose is measured, and the first part is made so short that it is a twelfth on the whole. Where they lose
nothing, a follower gets the log for four fifths of the time; where the log hardly grows, all the time.

In any case it gets a tenth more than the log grows, if the line allows it: else it would never catch up.
"""

from __future__ import annotations

import enum

__all__ = ["FAR_BEHIND", "CatchUpPace"]

# More than the log grows in some cycles: a follower that keeps up is never this far behind.
FAR_BEHIND = 64 << 20
CYCLE_S = 1.0
# At most, for a follower behind a slow line.
SETTLE_MAX_S = 0.2
# The shortest last part: in a shorter one nothing can be measured.
SHUT_MIN_S = 0.1
SLOWED_MAX = 1 / 12
# The rest is needed to measure.
SHARE_MAX = 0.9
# Bytes a second. Producers of a log that grows less are in no hurry.
GROWTH_MIN = 1 << 20
SENT_PER_GROWTH = 1.1
# Weight of the cycles before: puts also come faster or slower by themselves.
MEMORY = 0.8


class Part(enum.Enum):
    """Of a cycle."""

    OPEN = "OPEN"
    SETTLING = "SETTLING"
    SHUT = "SHUT"


class Rate:
    """How fast the log grows in one part of the cycles."""

    def __init__(self) -> None:
        self.size = self.seconds = 0.0

    def add(self, size: int, seconds: float) -> None:
        """Count another cycle."""
        self.size = self.size * MEMORY + size
        self.seconds = self.seconds * MEMORY + seconds

    @property
    def per_second(self) -> float:
        """Bytes a second, 0.0 if none was counted."""
        return self.size / self.seconds if self.seconds else 0.0


class CatchUpPace:
    """Used by the thread of the HA port.

    Attributes:
        share: of a cycle, in which the followers get the log.
        sent: bytes that each of them got in this cycle, by its number; one that takes none is not waited for.
    """

    def __init__(self) -> None:
        self.share = SHARE_MAX
        self.beside, self.alone = Rate(), Rate()
        # How long they settled in the last cycle.
        self.settled_in = 0.0
        self.begin_cycle(0.0, 0)

    def begin_cycle(self, now: float, log_end: int) -> None:
        """Begin a cycle."""
        self.part = Part.OPEN
        self.began = self.part_began = now
        self.part_end = log_end
        self.sent: dict[int, int] = {}

    def begin_part(self, part: Part, now: float, log_end: int) -> None:
        """Begin the next part of the cycle."""
        self.part, self.part_began = part, now
        if part is Part.SHUT:
            self.part_end = log_end

    def wait(self, now: float) -> float:
        """Return the seconds until `look` may change something, 0.0 if the followers get the log now."""
        if self.part is Part.OPEN:
            return 0.0
        # That they have settled is told by what they acknowledge, which wakes the thread.
        until = self.part_began + SETTLE_MAX_S if self.part is Part.SETTLING else self.cycle_end()
        return max(until - now, 0.001)

    def cycle_end(self) -> float:
        """Return when the cycle ends whose last part has begun."""
        return max(self.began + CYCLE_S, self.part_began + SHUT_MIN_S)

    def add(self, follower: int, size: int) -> None:
        """Count what a follower that is far behind has got."""
        if size:
            self.sent[follower] = self.sent.get(follower, 0) + size

    def look(self, now: float, log_end: int, *, is_needed: bool, is_settled: bool) -> None:
        """Go on to the next part if it is time. The log ends at *log_end*.

        Args:
            is_needed: some follower is far behind.
            is_settled: those have acknowledged what they were sent.
        """
        elapsed, growth = now - self.began, log_end - self.part_end
        if not is_needed or elapsed > 2 * CYCLE_S:
            # Nothing was measured: none was far behind, or the thread had no processor.
            self.begin_cycle(now, log_end)
        elif self.part is Part.OPEN:
            if elapsed >= self.share * CYCLE_S - self.settled_in and self.may_shut(growth / max(elapsed, 0.001)):
                self.begin_part(Part.SETTLING, now, log_end)
            elif elapsed >= CYCLE_S:
                self.begin_cycle(now, log_end)
        elif self.part is Part.SETTLING:
            if is_settled or now >= self.part_began + SETTLE_MAX_S:
                self.settled_in = now - self.part_began
                self.beside.add(growth, elapsed)
                self.begin_part(Part.SHUT, now, log_end)
        elif now >= self.cycle_end():
            self.alone.add(growth, now - self.part_began)
            self.share = self.chosen_share()
            self.begin_cycle(now, log_end)

    def may_shut(self, growth_per_second: float) -> bool:
        """Tell whether producers may need what the followers take, and these have got what they need to catch up."""
        # It grows faster in the other parts.
        needed = SENT_PER_GROWTH * max(growth_per_second, self.alone.per_second) * CYCLE_S
        return growth_per_second >= GROWTH_MIN and min(self.sent.values(), default=0) >= needed

    def chosen_share(self) -> float:
        """Return the share with which puts are slowed by no more than `SLOWED_MAX`."""
        alone, beside = self.alone.per_second, self.beside.per_second
        if beside >= alone * (1 - SLOWED_MAX / SHARE_MAX):
            return SHARE_MAX
        return SLOWED_MAX / (1 - beside / alone)
