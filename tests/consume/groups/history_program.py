"""A program that will be killed: threads that put, threads that consume in groups, and a journal that survives.

A journal line is written, with one write, before the program proceeds with its event, so that a kill loses no line:

    try BODY                                     a put begins
    put BODY                                     it returned
    got RUN GROUP CONSUMER QUEUE OFFSET BODY     a consumer was given a message, and acknowledges it after this line
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time

import reput

QUEUES = 3
GROUPS = ("billing", "audit")
TOPIC = "orders"


def main() -> None:
    """``STORE JOURNAL RUN SEED MODE``: put and consume until killed; MODE ``drain``: only consume, to the end."""
    directory, journal_path, run, seed, mode = sys.argv[1:]
    journal = os.open(journal_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(*words: object) -> None:
        os.write(journal, (" ".join(map(str, words)) + "\n").encode())

    settings = {"flush_consumer_offset_interval": 20, "mapped_file_size_commit_log": 1 << 16}
    with reput.open(directory, mode="inline", **settings) as store:

        def produce(producer: int) -> None:
            dice = random.Random(f"{seed}-{run}-{producer}")
            for number in range(1_000_000):
                body = f"{run}-{producer}-{number}"
                note("try", body)
                store.put(reput.Message(TOPIC, body.encode(), queue_id=dice.randrange(QUEUES)))
                note("put", body)
                if dice.random() < 0.2:
                    stop.wait(dice.random() / 500)

        def consume(group: str, number: int) -> None:
            dice = random.Random(f"{seed}-{run}-{group}-{number}")
            life = 0
            while not stop.is_set():
                life += 1
                with store.consumer(group, TOPIC) as consumer:
                    name = f"{number}.{life}"
                    for _ in range(dice.randrange(20, 400)):
                        record = consumer.receive(timeout=0.05)
                        if record is None:
                            if stop.is_set():
                                return
                            continue
                        note("got", run, group, name, record.queue_id, record.queue_offset, record.body.decode())
                        # Now and then a consumer goes with messages in its hands.
                        if dice.random() < 0.002:
                            break
                        consumer.acknowledge(record)

        stop = threading.Event()
        threads = [threading.Thread(target=consume, args=(group, n), daemon=True) for group in GROUPS for n in range(2)]
        if mode != "drain":
            threads += [threading.Thread(target=produce, args=(n,), daemon=True) for n in range(2)]
        for thread in threads:
            thread.start()
        print("ready", flush=True)
        if mode != "drain":
            threading.Event().wait()
        administration = store._engine.services.administration
        store.wait_for("consume_queue", store.appended, 60)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            store._engine.services.keep()
            rows = [row for group in GROUPS for row in administration.group_progress(group) if row.topic == TOPIC]
            if len(rows) == QUEUES * len(GROUPS) and not any(row.lag for row in rows):
                break
            stop.wait(0.02)
        else:
            raise SystemExit("the groups do not come to the end")
        stop.set()
        for thread in threads:
            thread.join(20)


if __name__ == "__main__":
    main()
