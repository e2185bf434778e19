"""Mqadmin: RocketMQ's own tool, many commands in one Java process, and the clients that they are about."""

from __future__ import annotations

import json
import re
import select
import subprocess
from pathlib import Path
from typing import Any, Self

from interop.clients.java_clients import REBALANCE_MS
from interop.java_program import java_command

__all__ = ["MqAdmin", "normalized"]

ANSWER_SECONDS_MAX = 120
LOGGING = '<configuration><root level="OFF"/></configuration>\n'
# Lines that Java adds to an error, and that logging prints about itself.
NOISE = re.compile(r"^(\tat |\t\.\.\. |For more information|See https?://|[0-9:,]+ \|-)")
MASKS = tuple(
    (re.compile(pattern), mask)
    for pattern, mask in (
        (r"127\.0\.0\.1:[0-9]+", "ADDRESS"),
        (r"\b20[0-9]{2}-[0-9]{2}-[0-9]{2}[ T][0-9:]+(,[0-9]+)?", "TIME"),
        (r"\b1[0-9]{12}\b", "MILLISECONDS"),
        (r"\b[0-9A-F]{32,}\b", "ID"),
        # The text of a refusal is each broker's own.
        (r"DESC: .*", ""),
        # Version 4 adds fewer properties to a record.
        (r"(physicOffset|physicSize|storeSize|commitLogOffset|CommitLog Offset)(=|: +)[0-9]+", r"\1=N"),
        (r"(MSG_REGION=DefaultRegion|TRACE_ON=true|CLUSTER=DefaultCluster|WAIT=true)(, )?", ""),
        (r", \}", "}"),
        (r"\bV[0-9]_[0-9]_[0-9]\b", "VERSION"),
        (r"TPS: [0-9.]+", "TPS: N"),
    )
)


class MqAdmin:
    """One Java process beside one name server; the end of a ``with`` ends it."""

    def __init__(self, version: str, name_server: str, home: Path) -> None:
        """*home* takes what the tool writes."""
        self.home = home
        (home / "conf").mkdir(parents=True)
        (home / "conf" / "logback_tools.xml").write_text(LOGGING)
        options = (f"-Drocketmq.home.dir={home}", f"-Drocketmq.client.rebalance.waitInterval={REBALANCE_MS}")
        command = [*java_command(version, home, "interop.Admin", *options), name_server]
        self.errors = home / "stderr"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd=home
            )
        self.answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def ask(self, do: str, **fields: object) -> dict[str, Any]:
        """Ask one question and return the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **fields}).encode() + b"\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """Wait for one line."""
        assert self.process.stdout is not None
        # One answer a question, so nothing of it can lie in the buffer while the pipe is empty.
        ready, _, _ = select.select([self.process.stdout], [], [], ANSWER_SECONDS_MAX)
        line = self.process.stdout.readline() if ready else b""
        answer: dict[str, Any] = json.loads(line) if line else {"error": "no answer"}
        assert "error" not in answer, f"{answer['error']}\n{self.errors.read_text('utf-8', 'replace')[-4000:]}"
        return answer

    def run(self, *arguments: object) -> str:
        """Run one command, and return what it printed."""
        output: str = self.ask("admin", arguments=[str(argument) for argument in arguments])["output"]
        return output


def normalized(output: str) -> list[str]:
    """Return the lines of an output without what differs from run to run: addresses, times, ids, rates, blanks."""
    lines = []
    # Between tracks of a message some commands print no line's end.
    for line in output.replace("MessageTrack [", "\nMessageTrack [").splitlines():
        if NOISE.match(line):
            continue
        for pattern, mask in MASKS:
            line = pattern.sub(mask, line)
        if line := " ".join(line.split()):
            lines.append(line)
    return lines
