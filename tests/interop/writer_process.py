"""A program that writes a store through reput until it is killed. ``python writer_process.py DIRECTORY OPTIONS``

OPTIONS are keyword arguments of `reput.open`, as JSON. Each line of standard input is a message, each line of standard
output is the result of one; the first line, unasked, reports that the store is open.
"""

from __future__ import annotations

import sys

import msgspec

import reput


def main() -> None:
    """Put the messages until the input ends, and then close."""
    options = msgspec.json.decode(sys.argv[2])
    encoder = msgspec.json.Encoder()
    with reput.open(sys.argv[1], **options) as store:
        print("open", flush=True)
        for line in sys.stdin.buffer:
            result = store.put(msgspec.json.decode(line, type=reput.Message))
            sys.stdout.buffer.write(encoder.encode(result) + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
