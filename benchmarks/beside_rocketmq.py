"""reput and RocketMQ beside each other: ``python benchmarks/beside_rocketmq.py --peer DIR`` in a checkout.

It is `reput bench beside`, with the same options.
"""

from __future__ import annotations

import sys

from reput.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "beside", *sys.argv[1:]]))
