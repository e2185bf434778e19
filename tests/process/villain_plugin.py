"""Source of a dispatcher that stores the offsets it gets, and harms its process as instructed until it is repaired."""

from __future__ import annotations

__all__ = ["VILLAIN"]

VILLAIN = """
import ctypes, os, resource, signal, sys, time
from pathlib import Path
import msgspec
from reput_hooks import *

class Options(msgspec.Struct):
    how: str
    healed: str

class Saved(msgspec.Struct):
    cursor: Cursor | None = None
    offsets: list[int] = []

def exit():
    os._exit(9)

def fault():
    ctypes.string_at(0)

def exhaust():
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + (64 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    leak = []
    while True:
        leak.append(bytearray(1 << 20))

def shout():
    for _ in range(20000):
        os.write(1, os.urandom(64))
        os.write(2, b"rubbish without an end of line")
    raise ValueError("shouted")

def leave():
    raise SystemExit("bye")

def interrupt():
    raise KeyboardInterrupt

def die_of_a_signal():
    os.kill(os.getpid(), signal.SIGABRT)

def stop():
    os.kill(os.getpid(), signal.SIGSTOP)

def close_descriptors():
    os.closerange(3, 1000)
    raise ValueError("closed them")

def write_into(name):
    for number in os.listdir("/proc/self/fd"):
        try:
            shared = os.readlink(f"/proc/self/fd/{number}").startswith(f"/memfd:{name}")
        except OSError:
            continue
        if shared:
            try:
                os.pwrite(int(number), b"rubbish!", 0)
            except OSError:
                continue
            Path(STOLEN).touch()
    for line in Path("/proc/self/maps").read_text().splitlines():
        if f"/memfd:{name}" in line and line.split()[1].startswith("r--"):
            ctypes.memset(int(line.split("-")[0], 16), 255, 4096)
            Path(STOLEN).touch()
    raise ValueError("nothing to write into")

HOW = {function.__name__: function for function in (
    exit, fault, exhaust, shout, leave, interrupt, die_of_a_signal, stop, close_descriptors
)} | {
    "write_into_ring": lambda: write_into("reput-ring"),
    "write_into_cells": lambda: write_into("reput-cells"),
}

class Villain(CommitLogDispatcher):
    def __init__(self, context):
        self.context = context
        self.file = context.directory / "saved.json"
        self.saved = msgspec.json.decode(self.file.read_bytes(), type=Saved) if self.file.exists() else Saved()

    def start(self):
        return self.saved.cursor

    def dispatch(self, batch):
        if not Path(self.context.options.healed).exists():
            if self.context.options.how == "be_slow":
                for _ in batch:
                    if Path(self.context.options.healed).exists():
                        break
                    time.sleep(0.01)
            elif len(batch):
                HOW[self.context.options.how]()
        self.saved.offsets += [request.commit_log_offset for request in batch]
        self.saved.cursor = batch.end

    def flush(self):
        replace_durably(self.file, msgspec.json.encode(self.saved))
        return self.saved.cursor

@hookimpl
def reput_create_dispatcher(context):
    return Villain(context)

@hookimpl
def reput_describe_dispatcher():
    return DispatcherDescription(options=Options, reads="appended")
"""
