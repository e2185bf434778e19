"""Source of a test dispatcher that stores the offsets it gets, and misbehaves as its options say."""

from __future__ import annotations

from pathlib import Path

PROBE = """
import json, os, signal, sys, time
from pathlib import Path
import msgspec
from reput_hooks import *

class Options(msgspec.Struct):
    limit: int = 0
    crash_at: int = -1
    kill_at: int = -1
    hang_at: int = -1
    leak: int = 0
    hang_in_flush: bool = False
    hang_beside: bool = False
    alive_at: int = -1
    seconds_per_record: float = 0.0
    retry_count: int = 0
    reject_at: int = -1
    reject_until: str = ""
    crash_in_replay: bool = False
    replay_later: int = 0
    crash_until: str = ""
    truncates: bool = False
    shout: int = 0
    never_durable: bool = False
    say: str = ""
    fork: bool = False
    crash_in_shadow: bool = False
    hang_in_shadow: bool = False
    hang_in_shadow_until: str = ""
    elsewhere: str = ""

class Saved(msgspec.Struct):
    cursor: Cursor | None = None
    offsets: list[int] = []

class Probe(CommitLogDispatcher):
    def __init__(self, context):
        self.context = context
        self.options = context.options
        self.file = Path(context.options.elsewhere or context.directory) / "probe.json"
        self.saved = msgspec.json.decode(self.file.read_bytes(), type=Saved) if self.file.exists() else Saved()
        self.leaked = []
        self.retries = self.options.retry_count
        self.events("create", *["rehearsal"] * context.rehearsal)
        if self.options.say:
            context.logger.warning("%s", self.options.say)
        if self.options.fork:
            pid = os.fork()
            if pid == 0:
                context.logger.warning("said by a forked process")
                import multiprocessing.util
                multiprocessing.util._exit_function()
                os._exit(0)
            os.waitpid(pid, 0)
        for _ in range(self.options.shout):
            print("shouting", flush=True)

    def events(self, *event):
        with open(self.context.store_directory / f"{self.context.name}.events", "a") as file:
            file.write(json.dumps([os.getpid(), *event]) + "\\n")

    def start(self):
        self.events("start", self.saved.cursor and self.saved.cursor.commit_log_offset)
        return self.saved.cursor

    def dispatch(self, batch):
        options = self.options
        if self.retries:
            self.retries -= 1
            self.events("retry")
            raise RetryLater("not now")
        offsets = [request.commit_log_offset for request in batch]
        self.leaked.append(b"x" * options.leak)
        time.sleep(options.seconds_per_record * len(offsets))
        crashes = not options.crash_until or not Path(options.crash_until).exists()
        if options.crash_at in offsets and crashes:
            raise ValueError(f"crash at {options.crash_at}")
        if options.kill_at in offsets and crashes:
            os.kill(os.getpid(), signal.SIGKILL)
        if options.hang_at in offsets:
            self.events("hang")
            time.sleep(3600)
        if options.alive_at in offsets:
            for _ in range(50):
                time.sleep(0.1)
                self.context.alive()
        if "shadow" in self.file.parts:
            if options.crash_in_shadow:
                raise ValueError("crash in shadow")
            while options.hang_in_shadow:
                time.sleep(0.01)
            go = self.context.store_directory / options.hang_in_shadow_until
            while options.hang_in_shadow_until and not go.exists():
                time.sleep(0.01)
        for request in batch:
            accepts = options.reject_until and Path(options.reject_until).exists()
            if options.reject_at in (request.commit_log_offset, -2) and not accepts:
                self.context.reject(request, "poison")
        self.saved.offsets += offsets
        self.saved.cursor = batch.end
        self.context.counter("seen").value += len(offsets)
        self.events("dispatch", batch.commit_log_offset, batch.end.commit_log_offset, len(batch))

    def replay(self, batch):
        self.events("replay", [request.commit_log_offset for request in batch], batch.end.commit_log_offset)
        if self.options.crash_in_replay:
            raise ValueError("crash in replay")
        if self.options.replay_later:
            self.options.replay_later -= 1
            raise RetryLater("not now")
        self.dispatch(batch)

    def prepare_flush(self):
        return self.options.hang_beside

    def flush(self):
        if self.options.never_durable:
            return None
        if self.options.hang_in_flush:
            time.sleep(3600)
        replace_durably(self.file, msgspec.json.encode(self.saved))
        return self.saved.cursor

    def truncate(self, cursor):
        self.events("truncate", cursor.commit_log_offset)
        if not self.options.truncates:
            raise RebuildNeeded
        self.saved.offsets = [offset for offset in self.saved.offsets if offset < cursor.commit_log_offset]
        self.saved.cursor = cursor

    def expire(self, commit_log_offset_min):
        self.events("expire", commit_log_offset_min)

    def delete_topic(self, topic):
        self.events("delete_topic", topic)

    def close(self):
        self.events("close")

@hookimpl
def reput_create_dispatcher(context):
    return Probe(context)

@hookimpl
def reput_describe_dispatcher():
    return DispatcherDescription(options=Options, DESCRIPTION)
"""


class PluginFolder:
    """A folder for `sys.path` with one distribution of test dispatchers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.points: dict[str, str] = {}
        self.version = "1.0"
        folder.mkdir(exist_ok=True)

    def add(self, name: str, description: str = 'reads="appended"', source: str | None = None) -> str:
        """Install a dispatcher: a probe that declares *description*, or any *source*. Return its name."""
        # The module's name is as unique as the folder, because modules stay loaded in a process with an inline group.
        module = f"plugin_{name}_{abs(hash(str(self.folder))):x}"
        text = PROBE.replace("DESCRIPTION", description) if source is None else source
        (self.folder / f"{module}.py").write_text(text)
        self.points[name] = module
        self.install()
        return name

    def remove(self, name: str) -> None:
        """Uninstall a dispatcher."""
        del self.points[name]
        self.install()

    def install(self) -> None:
        """Write the metadata."""
        metadata = self.folder / "probes-1.0.dist-info"
        metadata.mkdir(exist_ok=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: probes\nVersion: {self.version}\n")
        lines = [f"{name} = {module}" for name, module in self.points.items()]
        (metadata / "entry_points.txt").write_text("\n".join(["[reput.dispatchers]", *lines, ""]))
