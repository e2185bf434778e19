"""Dispatchers that keep the contract, and variants of them with one mistake for each clause."""

from __future__ import annotations

from source_tree import ROOT

__all__ = ["BODIES", "BROKEN", "COUNTS", "SAVES", "TOPIC_COUNT", "counting"]

SOURCE = ROOT / "tests" / "plugin_distribution" / "src" / "reput_topic_count" / "__init__.py"
TOPIC_COUNT = SOURCE.read_text("utf-8")

# Stores every message's body in a database, keyed by position: reads bodies, rejects unreadable ones, truncates.
BODIES = """
import json, sqlite3
import msgspec
from reput_hooks import *

class Options(msgspec.Struct):
    fail: bool = False

class Bodies(CommitLogDispatcher):
    def __init__(self, context):
        self.context = context
        self.database = sqlite3.connect(context.directory / "bodies.db", isolation_level=None)
        self.database.execute("CREATE TABLE IF NOT EXISTS bodies (at INTEGER PRIMARY KEY, topic, queue, body)")
        self.database.execute("CREATE TABLE IF NOT EXISTS cursor (cursor)")

    def start(self):
        row = self.database.execute("SELECT cursor FROM cursor").fetchone()
        self.database.execute("BEGIN")
        return row and msgspec.json.decode(row[0], type=Cursor)

    def dispatch(self, batch):
        if not len(batch):
            self.end = batch.end
            return
        try:
            records = self.context.log.read_many(batch)
        except OSError as error:
            raise RetryLater("the log is away") from error
        for request, record in zip(batch, records):
            try:
                body = json.loads(record.body)
            except ValueError as error:
                self.context.reject(request, str(error))
                continue
            self.database.execute("INSERT INTO bodies VALUES (?, ?, ?, ?)",
                                  (record.commit_log_offset, record.topic, record.queue_id, repr(body)))
        self.end = batch.end

    def flush(self):
        self.save(self.end)
        return self.end

    def save(self, cursor):
        self.database.execute("DELETE FROM cursor")
        self.database.execute("INSERT INTO cursor VALUES (?)", (msgspec.json.encode(cursor),))
        self.database.commit()
        self.database.execute("BEGIN")

    def truncate(self, cursor):
        self.database.execute("DELETE FROM bodies WHERE at >= ?", (cursor.commit_log_offset,))
        self.end = cursor

    def delete_topic(self, topic):
        self.database.execute("DELETE FROM bodies WHERE topic = ?", (topic,))

    def expire(self, commit_log_offset_min):
        self.database.execute("DELETE FROM bodies WHERE at < ?", (commit_log_offset_min,))

    def close(self):
        self.database.close()

@hookimpl
def reput_create_dispatcher(context):
    return Bodies(context)

@hookimpl
def reput_describe_dispatcher():
    return DispatcherDescription(api_version=1, options=Options)
"""


def changed(source: str, *changes: tuple[str, str]) -> str:
    """Return *source* with the first text of each of *changes* replaced by the second."""
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    return source


def counting(*changes: tuple[str, str]) -> str:
    """Return the counting dispatcher, changed."""
    return changed(TOPIC_COUNT, *changes)


def beside(path: str) -> str:
    """Return the counting dispatcher, which also writes to *path* when it is closed."""
    return counting(
        ("    def start(self)", f"{CLOSES.format(path=path)}    def start(self)"),
        (
            "        self.end = saved.cursor\n",
            "        self.end = saved.cursor\n        self.log = context.store_directory / 'commitlog'\n",
        ),
    )


def keeping(*changes: tuple[str, str]) -> str:
    """Return the body-storing dispatcher, changed."""
    return changed(BODIES, *changes)


SAVES = "replace_durably(self.file, msgspec.json.encode(Saved(self.end, self.count)))"
SAVES_UNFORCED = "self.file.write_bytes(msgspec.json.encode(Saved(self.end, self.count)))"
ENDS = "        self.end = batch.end\n\n"
NO_GAP = "assert not self.end or batch.commit_log_offset == self.end.commit_log_offset, 'there is a gap'"
COUNTS = "        self.count.update"
TOPICS = "request.topic for request in batch"
FLUSH = "    def flush(self)"
CLOSES = """    def close(self):
        path = {path}
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"words")

"""
OLDER = "msgspec.structs.replace(self.end, commit_log_offset=self.end.commit_log_offset - 1)"
SAVE_TOTALS_ALONE = """    def save(self):
        self.file.write_bytes(msgspec.json.encode(Saved(self.saved, self.count)))

"""
INSERTS = "        self.database.execute('INSERT INTO bodies VALUES (NULL, 0, 0, 0)')\n"
DELETES = 'self.database.execute("DELETE FROM bodies WHERE topic = ?", (topic,))'

# Clause → (expected finding, source of the dispatcher).
BROKEN: dict[str, list[tuple[str, str]]] = {
    "starts_with_nothing": [
        ("another store", counting(("return self.end\n\n    def d", "return Cursor('f' * 32, 1, 0, 0)\n\n    def d"))),
    ],
    "takes_in_the_log": [
        (
            "the last flush returned 2236 after dispatching up to",
            counting((ENDS, "        self.end = self.end or batch.end\n\n")),
        ),
        (
            "a cursor that is not at a record",
            counting(("        return self.end\n\n\n", f"        return {OLDER}\n\n\n")),
        ),
    ],
    "any_batches": [
        ("differs if batches are of one record", counting((TOPICS, "request.topic for request in list(batch)[:6]"))),
        ("differs if batches are of one record", counting((TOPICS, f"{{{TOPICS}}}"))),
    ],
    "catches_up": [
        (
            "if it catches up in smaller batches",
            counting((TOPICS, "request.topic for request in list(batch)[:500]")),
        ),
    ],
    "goes_on_where_it_stopped": [
        ("after pauses: .* found 2 expected 20", counting(("Counter(saved.count)", "Counter()"))),
        ("after pauses: .* found 166 expected 20", counting(("self.end = saved.cursor", "self.end = None"))),
    ],
    "at_least_once": [
        (
            "after crashes with 0 .* found 60 expected 20",
            counting(
                ("self.end = saved.cursor", "self.end = self.saved = saved.cursor"),
                (ENDS, f"{ENDS.rstrip()}\n        self.save()\n\n"),
                (FLUSH, SAVE_TOTALS_ALONE + FLUSH),
            ),
        ),
    ],
    "flush_forces_to_disk": [("neither fsync nor fdatasync", counting((SAVES, SAVES_UNFORCED)))],
    "retries_after_failures": [
        ("after reading 1 of the log", keeping(("raise RetryLater", "self.end = batch.end; return; raise RetryLater"))),
        (
            "after reading 1 of the log",
            keeping(("        try:\n            re", f"{INSERTS}        try:\n            re")),
        ),
    ],
    "takes_in_or_rejects_any_record": [
        (
            "raised JSONDecodeError: .* at a record with topic=awkward body=b''",
            keeping(
                ("ValueError as error:\n                self", "ZeroDivisionError as error:\n                self")
            ),
        ),
    ],
    "truncates": [
        ("UNIQUE constraint failed", keeping((" >= ?", " > ?"))),
        (
            "after the log was cut after record 1: .* found 40 expected 21",
            counting((FLUSH, f"    def truncate(self, cursor):\n        self.end = cursor\n\n{FLUSH}")),
        ),
    ],
    "truncates_no_further_than_the_log": [
        ("UNIQUE constraint failed", keeping((" >= ?", " > ?"))),
        (
            "after the log's history below 16384 became unknown",
            counting((FLUSH, f"    def truncate(self, cursor):\n        self.end = cursor\n\n{FLUSH}")),
        ),
    ],
    "expires": [
        (
            "cannot expire",
            counting((FLUSH, f"    def expire(self, at):\n        raise OSError('cannot expire')\n\n{FLUSH}")),
        ),
    ],
    "goes_on_behind_a_gap": [
        (
            "there is a gap",
            counting((COUNTS, f"        {NO_GAP}\n{COUNTS}")),
        ),
    ],
    "deletes_topics": [
        (
            "never-was",
            counting((FLUSH, f"    def delete_topic(self, topic):\n        dict(self.count)[topic]\n\n{FLUSH}")),
        ),
        (
            "if topics are deleted while it runs",
            keeping(
                (DELETES, "self.topic = topic"),
                (
                    "        self.save(self.end)\n",
                    f"        topic = getattr(self, 'topic', '')\n        {DELETES}\n        self.save(self.end)\n",
                ),
            ),
        ),
    ],
    "is_built_again": [
        (
            "still has a cursor",
            counting(('context.directory / "topic_count.json"', 'context.store_directory / "count.json"')),
        ),
    ],
    "keeps_to_its_folders": [
        ("there are 1 .* reput/views/words.txt was written", beside("self.file.parent.parent / 'words.txt'")),
        ("there are 1 .* words/0 was written", beside("self.file.parents[3] / 'words' / '0'")),
        (r"there are 1 .* commitlog/words \(in the store that it reads\) was", beside("self.log / 'words'")),
        (
            r"there are 1 .* checkpoint \(in the store that it reads\) was changed",
            beside("self.log.parent / 'checkpoint'"),
        ),
    ],
    "runs_in_a_process": [
        (
            "not in this process",
            counting(
                (COUNTS, f"        import sys\n        assert 'pytest' in sys.modules, 'not in this process'\n{COUNTS}")
            ),
        ),
    ],
    "crash_at_every_call": [
        ("does not start after a crash before call 5", counting((SAVES, SAVES_UNFORCED))),
        (
            "start returned 0 after a crash .* flush had returned",
            counting((SAVES, f"self.file.unlink(missing_ok=True); {SAVES}")),
        ),
        (
            "after a crash before call 9: .* found 10 expected 8",
            counting((SAVES, f"replace_durably(self.file, msgspec.json.encode(Saved(None, self.count))); {SAVES}")),
        ),
    ],
}
