"""SupervisorProcess: a supervisor as its owner sees it. It loads its modules before it learns which store it is for.

owner ── begins ──▶ the process loads modules ── Setup, the ring's descriptors ──▶ it supervises
      └─ recovers the log meanwhile ─────────────┘
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from reput.process.control.channel import JsonChannel
from reput.process.system.command import holding_signals, role_command

__all__ = ["SupervisorProcess"]


class SupervisorProcess:
    """Begins with the construction, and ends by `end`, or when its owner does.

    Attributes:
        channel: takes the setup, in its first line, and then requests.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.channel = JsonChannel(ours)
        try:
            # A SIGTERM while the process boots makes it drain instead of dying.
            with theirs, holding_signals():
                self.process = subprocess.Popen(
                    role_command("supervisor", str(theirs.fileno()), str(os.getpid()), path=sys.path),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
        except BaseException:
            self.channel.close()
            raise

    def end(self) -> None:
        """Kill the process, and with it its dispatchers. Further calls do nothing."""
        self.process.kill()
        self.process.wait()
        self.channel.close()
