"""Describe: ask a plugin what it declares, in a short-lived process that imports it and nothing else does.

The answer is kept in the user's cache directory by distribution and version (of an editable installation also by the
time of the sources in the module's package), so that the question costs a file's reading from the second time on. What
failed is asked again each time: a missing library may have been installed since.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from reput.errors import ConfigError, DispatcherError
from reput.process.logs.exception_text import exception_line
from reput.process.plugin.catalogue import CatalogueEntry
from reput.process.plugin.description import PluginDescription, lies_elsewhere, portable_description
from reput.process.system.command import role_command
from reput_hooks import API_VERSION

__all__ = ["Answer", "DescribeProcess", "Question", "describe", "main"]

CACHE_VERSION = 7


class Question(msgspec.Struct, frozen=True):
    """Which plugin is to describe itself, and the options that its dispatcher is to get."""

    entry: CatalogueEntry
    options: dict[str, object] = {}


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came back: a description, or *refused* (the options are wrong), or *broken* (a traceback).

    Attributes:
        offered: what the plugin declares, where it is the options that are wrong.
    """

    description: PluginDescription | None = None
    offered: PluginDescription | None = None
    refused: str | None = None
    advice: str = ""
    broken: str | None = None

    def declared(self) -> PluginDescription:
        """Return the description.

        Raises:
            ConfigError: the options are wrong.
            DispatcherError: the plugin cannot be imported or described.
        """
        if self.refused is not None:
            raise ConfigError(self.refused, self.advice)
        if self.description is None:
            raise DispatcherError(exception_line(self.broken or ""), "See `reput plugin list`.")
        return self.description


class DescribeProcess:
    """One question under way. `answer` is there when the process has ended, or at once from the cache."""

    def __init__(self, question: Question, path: Sequence[str] = ()) -> None:
        """Ask; *path*: further entries of `sys.path` for the process."""
        self.question = question
        self.kept = cache_file(question)
        self.answer: Answer | None = read_kept(self.kept)
        self.process: subprocess.Popen[bytes] | None = None
        self.descriptor = -1
        self.received = b""
        if self.answer is None:
            self.ask(path)

    def ask(self, path: Sequence[str]) -> None:
        self.descriptor, answer_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        question = os.memfd_create("reput-question", os.MFD_CLOEXEC)
        try:
            os.pwrite(question, msgspec.json.encode(self.question), 0)
            self.process = subprocess.Popen(
                role_command("describe", str(answer_end), str(os.getpid()), path=path),
                stdin=question,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[answer_end],
                start_new_session=True,
            )
        finally:
            os.close(answer_end)
            os.close(question)

    def receive(self) -> bool:
        """Take up what the process has said, after its descriptor became readable; return whether it is done."""
        try:
            data = os.read(self.descriptor, 1 << 20)
        except BlockingIOError:
            return False
        self.received += data
        # The answer is one line. Its end counts, not the pipe's: what the plugin forked may keep that open.
        if data and not data.endswith(b"\n"):
            return False
        self.end()
        return True

    def end(self, reason: str = "") -> None:
        """Take the process's end, which is due or overdue, and make an answer of what it said."""
        assert self.process is not None
        os.close(self.descriptor)
        if reason:
            self.process.kill()
        status = self.process.wait()
        try:
            self.answer = msgspec.json.decode(self.received, type=Answer)
        except msgspec.DecodeError:
            why = reason or (f"signal={-status}" if status < 0 else f"exit_status={status}")
            self.answer = Answer(
                broken=f"the process that imported the plugin gave no answer: "
                f"dispatcher={self.question.entry.name} module={self.question.entry.module} {why}"
            )
        if self.answer.broken is None:
            keep(self.kept, self.answer)


def describe(entry: CatalogueEntry, options: Mapping[str, object], timeout: float = 60.0) -> Answer:
    """Ask *entry*'s plugin, and wait for the answer for *timeout* seconds."""
    import select

    try:
        entry.check()
    except ConfigError as error:
        return Answer(broken=str(error))
    asked = DescribeProcess(Question(entry, dict(options)), path=sys.path)
    if asked.answer is None:
        poll = select.poll()
        poll.register(asked.descriptor, select.POLLIN)
        while asked.answer is None:
            if not poll.poll(timeout * 1000):
                asked.end(f"timeout={timeout}")
            elif asked.receive():
                break
    assert asked.answer is not None
    return asked.answer


def cache_file(question: Question) -> Path | None:
    """Return where the answer to *question* is kept; None: it may change without anybody's noticing."""
    entry = question.entry
    changed = entry.module_changed_ns() if entry.editable else 0
    if changed is None:
        return None
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    key = msgspec.json.encode(
        [CACHE_VERSION, API_VERSION, sys.version, question, changed], enc_hook=str, order="deterministic"
    )
    return Path(root, "reput", "descriptions", f"{hashlib.sha256(key).hexdigest()[:32]}.json")


def read_kept(path: Path | None) -> Answer | None:
    """Return the kept answer; None: there is none, or none that can be read."""
    if path is None:
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Answer)
    except (OSError, msgspec.MsgspecError):
        return None


def keep(path: Path | None, answer: Answer) -> None:
    """Keep *answer*. A cache that cannot be written costs time at the next start, and nothing else."""
    if path is None:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        draft.write_bytes(msgspec.json.encode(answer))
        draft.replace(path)


def main(arguments: Sequence[str]) -> None:
    """Read a `Question` from stdin and write the `Answer`; the arguments are its descriptor and the asking process."""
    from reput.process.plugin.plugin import check_instance, convert_options, load_plugin
    from reput.process.system.parent_death import die_with_parent

    descriptor = int(arguments[0])
    # Whoever asks waits for the answer in the thread that asked.
    die_with_parent(int(arguments[1]))
    os.set_inheritable(descriptor, False)
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    name, pid = question.entry.name, os.getpid()
    offered: PluginDescription | None = None
    try:
        description = load_plugin(name, question.entry.module).describe()
        check_instance(question.entry, description.store_folders)
        offered = portable_description(description, view_elsewhere=description.view_elsewhere is True)
        options = convert_options(name, question.options, description.options)
        elsewhere = lies_elsewhere(description, options)
        answer = Answer(portable_description(description, view_elsewhere=elsewhere))
    except ConfigError as error:
        answer = Answer(refused=str(error), advice=error.advice, offered=offered)
    except BaseException:
        # Whatever a stranger's import does, sys.exit included, is the answer.
        answer = Answer(broken=traceback.format_exc())
    if os.getpid() != pid:
        # The import has forked, and its child came back here: one answer is enough.
        os._exit(0)
    os.set_blocking(descriptor, True)
    data = msgspec.json.encode(answer) + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]
    # Threads and exit handlers of the plugin have no say in how long this takes.
    os._exit(0)
