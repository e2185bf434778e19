"""Messages per minute of each topic as a picture, counted by Spark in a lake: python chart.py LAKE CHART.svg

By the time of birth, so that a replay or a broker that was away for a while does not show.
"""

import sys
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, count, floor, unix_millis
from session import session

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 760, 300, 48, 28, 34
COLORS = ("#2563eb", "#dc2626", "#05966a", "#d97706", "#7c3aed", "#0891b2")


def counts(spark: SparkSession, lake: str) -> dict[str, dict[int, int]]:
    """Return of each topic how many messages were born in each minute since 1970."""
    files = DeltaTable(lake).file_uris()
    rows = spark.read.option("basePath", lake).parquet(*files).where("bornTimestamp is not null")
    minute = floor(unix_millis("bornTimestamp") / 60_000).alias("minute")
    found: dict[str, dict[int, int]] = {}
    for row in rows.groupBy(col("topic"), minute).agg(count("*").alias("messages")).collect():
        found.setdefault(str(row["topic"]), {})[row["minute"]] = row["messages"]
    return found


def chart(found: dict[str, dict[int, int]]) -> str:
    """Return the picture: a line for each topic over the minutes."""
    minutes = sorted({minute for of_topic in found.values() for minute in of_topic})
    first, last = minutes[0], minutes[-1]
    most = max(max(of_topic.values()) for of_topic in found.values())

    def place(minute: int, messages: int) -> str:
        x = LEFT + (WIDTH - LEFT - 16) * (minute - first) / max(last - first, 1)
        y = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * messages / most
        return f"{x:.1f},{y:.1f}"

    def clock(minute: int) -> str:
        return f"{minute // 60 % 24:02d}:{minute % 60:02d}"

    def text(x: float, y: float, words: str, anchor: str, color: str = "#37415f") -> str:
        return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{color}">{words}</text>'

    base = HEIGHT - BOTTOM
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        text(LEFT, 16, "messages per minute", "start"),
        f'<path d="M{LEFT},{TOP} V{base} H{WIDTH - 16}" fill="none" stroke="#9ca3af"/>',
        text(LEFT - 6, TOP + 6, str(most), "end"),
        text(LEFT - 6, base, "0", "end"),
        text(LEFT, HEIGHT - 14, clock(first), "start"),
        text(WIDTH - 16, HEIGHT - 14, clock(last), "end"),
    ]
    for number, topic in enumerate(sorted(found)):
        color = COLORS[number % len(COLORS)]
        points = " ".join(place(minute, found[topic].get(minute, 0)) for minute in range(first, last + 1))
        lines.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        lines.append(text(WIDTH - 16, 16 + 15 * number, topic.replace("&", "&amp;").replace("<", "&lt;"), "end", color))
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(chart(counts(session("chart"), sys.argv[1])), "utf-8")
