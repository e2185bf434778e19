"""Describe: asks a plugin for its declarations, in a short-lived process that alone imports it.

The answer is cached in the user's cache directory by distribution, version and the time of the module's file, which a
new installation of the same version changes (for an editable installation by the time of all sources in the module's
package), so from the second time on the question costs one file read. A
failure is not cached: a missing library may have been installed since.
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
    """The plugin to describe, and the options for its dispatcher."""

    entry: CatalogueEntry
    options: dict[str, object] = {}


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer: a description, or *refused* (the options are wrong), or *broken* (a traceback).

    Attributes:
        offered: the plugin's declarations, if only the options are wrong.
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
    """One pending question. `answer` is set when the process has ended, or at once from the cache."""

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
        """Read from the process after its descriptor became readable; return whether the answer is complete."""
        try:
            data = os.read(self.descriptor, 1 << 20)
        except BlockingIOError:
            return False
        self.received += data
        # The answer is one line. Its end counts, not the pipe's: a process that the plugin forked may keep that open.
        if data and not data.endswith(b"\n"):
            return False
        self.end()
        return True

    def end(self, reason: str = "") -> None:
        """Wait for the process's end, killing it if there is a *reason*, and build the answer from its output."""
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
    """Ask *entry*'s plugin, and wait up to *timeout* seconds for the answer."""
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
    """Return the cache file for the answer to *question*; None: changes of the plugin could not be detected."""
    entry = question.entry
    changed = entry.module_changed_ns() if entry.editable else entry.module_file_changed_ns()
    if changed is None:
        return None
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    key = msgspec.json.encode(
        [CACHE_VERSION, API_VERSION, sys.version, question, changed], enc_hook=str, order="deterministic"
    )
    return Path(root, "reput", "descriptions", f"{hashlib.sha256(key).hexdigest()[:32]}.json")


def read_kept(path: Path | None) -> Answer | None:
    """Return the cached answer; None: there is none, or it cannot be read."""
    if path is None:
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Answer)
    except (OSError, msgspec.MsgspecError):
        return None


def keep(path: Path | None, answer: Answer) -> None:
    """Cache *answer*. If the cache cannot be written, the next start only takes longer."""
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
    # The asking thread waits for the answer, so its end may end this process.
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
        # Any failure of a foreign import, including sys.exit, becomes the answer.
        answer = Answer(broken=traceback.format_exc())
    if os.getpid() != pid:
        # The import has forked, and this is its child: one answer is enough.
        os._exit(0)
    os.set_blocking(descriptor, True)
    data = msgspec.json.encode(answer) + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]
    # Threads and exit handlers of the plugin must not delay the end.
    os._exit(0)
