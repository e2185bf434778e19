"""The processes of `reput serve`: ``python -I …/__main__.py PATH keeper|broker ARGUMENT…``, see `keeper`."""

from __future__ import annotations

import gc
import os
import sys

# For at most this long, the keeper leaves the processor to the broker that starts.
STARTING_MS = 1000


def main() -> int:
    """Run the role that the command line names."""
    # Loading modules makes hardly any garbage, but each collection visits all that was loaded so far.
    gc.disable()
    path, role, *arguments = sys.argv[1:]
    known = set(sys.path)
    ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if ours not in known:
        # reput is not installed, but was found through the program's environment: load the same reput.
        sys.path.insert(0, ours)
    sys.path += [entry for entry in path.split(os.pathsep) if entry and entry not in known]
    import logging

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    return keeper(*arguments) if role == "keeper" else broker(int(arguments[0]))


def keeper(options: str, started: str, report: str) -> int:
    """Keep a broker running."""
    import select

    # Loading the keeper's modules now would take the processor from the broker that starts.
    starting = select.poll()
    starting.register(int(report), select.POLLIN)
    starting.poll(STARTING_MS)
    import msgspec

    from reput.broker.keeper import StartedBroker, keep
    from reput.broker.serve_options import ServeOptions
    from reput.errors import ConfigError, ReputError

    gc.enable()
    try:
        return keep(msgspec.json.decode(options, type=ServeOptions), msgspec.json.decode(started, type=StartedBroker))
    except ReputError as error:
        # The form in which every verb reports its errors.
        print(f"reput: {error}\n       {error.advice}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 3


def broker(descriptor: int) -> int:
    """Receive options through the socket *descriptor*, and serve the store that they name."""
    import signal
    import socket

    from reput.process.system.parent_death import die_with_parent

    die_with_parent(os.getppid(), signal.SIGTERM)
    os.set_inheritable(descriptor, False)
    import msgspec

    from reput.broker.broker_process import receive
    from reput.broker.serve_options import ServeOptions
    from reput.broker.serving import serve

    gc.freeze()
    gc.enable()
    channel = socket.socket(fileno=descriptor)
    received = receive(channel)
    if received is None:
        return 0
    options, listeners = received
    served = msgspec.structs.replace(msgspec.json.decode(options, type=ServeOptions), listeners=listeners)
    return serve(served, channel.detach())


if __name__ == "__main__":
    sys.exit(main())
