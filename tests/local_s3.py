"""A local S3 server for tests, in a process of its own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

__all__ = ["local_s3"]

# On a busy machine, moto takes long to load.
SECONDS_MAX = 300
# The system assigns its port, so no other process can have taken it.
SERVER = """
import threading
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
threading.Event().wait()
"""


@contextlib.contextmanager
def local_s3(bucket: str) -> Iterator[dict[str, str]]:
    """Yield the settings for an S3 that has one bucket, by the names of environment variables."""
    # In a separate process: the Delta library holds the interpreter lock while it waits for an answer.
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        try:
            address = f"http://127.0.0.1:{int(server.stdout.readline())}"
            request = urllib.request.Request(f"{address}/{bucket}", method="PUT")
            urllib.request.urlopen(request, timeout=SECONDS_MAX).close()
            yield {
                "AWS_ENDPOINT_URL": address,
                "AWS_ALLOW_HTTP": "true",
                "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": "not shown",
            }
        finally:
            server.kill()
