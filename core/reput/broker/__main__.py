"""The broker's process: ``python -I …/__main__.py PATH broker OPTIONS REPORT``, as the keeper starts it."""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Serve the store that the command line names."""
    path, _, options, report = sys.argv[1:]
    known = set(sys.path)
    ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if ours not in known:
        # Not installed, but found through the environment of the program: this very reput, and no other.
        sys.path.insert(0, ours)
    sys.path += [entry for entry in path.split(os.pathsep) if entry and entry not in known]
    import logging
    import signal

    import msgspec

    from reput.broker.serving import ServeOptions, serve
    from reput.process.system.parent_death import die_with_parent

    die_with_parent(os.getppid(), signal.SIGTERM)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    return serve(msgspec.json.decode(options, type=ServeOptions), int(report))


if __name__ == "__main__":
    sys.exit(main())
