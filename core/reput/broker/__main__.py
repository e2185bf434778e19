"""The processes of `reput serve`: ``python -I …/__main__.py PATH keeper|broker ARGUMENT…``, see `keeper`."""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Run the role that the command line names."""
    path, role, options, last = sys.argv[1:]
    known = set(sys.path)
    ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if ours not in known:
        # Not installed, but found through the environment of the program: this very reput, and no other.
        sys.path.insert(0, ours)
    sys.path += [entry for entry in path.split(os.pathsep) if entry and entry not in known]
    import logging

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    return keeper(options, last) if role == "keeper" else broker(options, int(last))


def keeper(options: str, started: str) -> int:
    """Keep a broker running."""
    import msgspec

    from reput.broker.keeper import StartedBroker, keep
    from reput.broker.serve_options import ServeOptions
    from reput.errors import ConfigError, ReputError

    try:
        return keep(msgspec.json.decode(options, type=ServeOptions), msgspec.json.decode(started, type=StartedBroker))
    except ReputError as error:
        # As every verb reports its errors.
        print(f"reput: {error}\n       {error.advice}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 3


def broker(options: str, report: int) -> int:
    """Serve a store."""
    import signal

    import msgspec

    from reput.broker.serve_options import ServeOptions
    from reput.broker.serving import serve
    from reput.process.system.parent_death import die_with_parent

    die_with_parent(os.getppid(), signal.SIGTERM)
    return serve(msgspec.json.decode(options, type=ServeOptions), report)


if __name__ == "__main__":
    sys.exit(main())
