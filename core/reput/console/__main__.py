"""The process of a console beside a broker: ``python -I …/__main__.py PATH console OPTIONS``, see `broker.beside`."""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Serve until SIGTERM, or until the process that has started this one ends."""
    path, _, options = sys.argv[1:]
    known = set(sys.path)
    ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if ours not in known:
        # Not installed, but found through the environment of the program: this very reput, and no other.
        sys.path.insert(0, ours)
    sys.path += [entry for entry in path.split(os.pathsep) if entry and entry not in known]
    import logging
    import signal

    from reput.process.system.parent_death import die_with_parent

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    # The thread that has started this process blocks them.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    die_with_parent(os.getppid(), signal.SIGTERM)
    import msgspec

    from reput.console.console_options import ConsoleOptions, serve_beside
    from reput.errors import ReputError

    try:
        serve_beside(msgspec.json.decode(options, type=ConsoleOptions))
    except ReputError as error:
        print(f"reput: {error}\n       {error.advice}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
