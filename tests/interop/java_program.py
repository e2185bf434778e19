"""The Java program of this folder, built by Maven against one version of RocketMQ, once, outside the repository."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from interop.put_questions import put_question
from reput.settings import Settings
from reput.store.record.message import Message

__all__ = ["OLDER_VERSIONS", "VERSIONS", "enters_tags", "java_command"]

# Versions that run all tests. The newest runs the tests of its changes: each start of it takes seconds.
OLDER_VERSIONS = ("4.9.7", "5.3.3")
VERSIONS = (*OLDER_VERSIONS, "5.5.0")
SOURCES = Path(__file__).with_name("java")
BUILD_SECONDS_MAX = 600
# Maven's messages when it cannot reach a repository, as opposed to compile errors.
UNREACHABLE = ("Could not transfer", "Could not resolve dependencies", "could not be resolved", "Unknown host")
JVM_OPTIONS = (
    "-Xms32m",
    "-Xmx192m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    # Lets RocketMQ unmap its files on a current Java.
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    # Standard output is for answers.
    "-Xlog:disable",
    "-Xlog:all=warning:stderr",
)
ARCHIVE = "classes.jsa"
SMALL_SEGMENTS = "mappedFileSizeCommitLog=4096"
# Questions that every test asks, so that the archive includes the classes for their answers.
QUESTIONS = (
    {"do": "clock", "ms": 1},
    put_question(Message("orders", b"", keys="k"), Settings(), 1),
    {"do": "queues"},
    {"do": "records"},
    {"do": "get", "topic": "orders", "queueId": 0, "queueOffset": 0, "count": 1},
    {"do": "query", "topic": "orders", "key": "k", "count": 1, "begin": 0, "end": 1},
)


def enters_tags(version: str) -> bool:
    """Tell whether this version's index has the tags of messages."""
    return version >= "5.4"


def java_command(version: str, home: Path, main: str = "interop.Main", *options: str) -> list[str]:
    """Return the command for a *main* class with *version*; *home* is a directory for RocketMQ's own files.

    Args:
        options: for the JVM, in addition to those of all programs.

    Skips the test if Java or Maven is missing, or Maven cannot fetch RocketMQ.
    """
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: RocketMQ itself cannot be asked")
    built = built_program(version)
    archive = built / ARCHIVE
    archived = [f"-XX:SharedArchiveFile={archive}"] if archive.stat().st_size else []
    return command(built, home, main, *archived, *options)


def command(built: Path, home: Path, main: str, *options: str) -> list[str]:
    """Return the command for a main class of a built program."""
    return [
        *("java", *JVM_OPTIONS, *options, f"-Duser.home={home}"),
        *("-cp", f"{built / 'interop-1.jar'}:{built / 'lib'}/*", main),
    ]


def built_program(version: str) -> Path:
    """Return the path of the program built against *version*, after building it if necessary."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "reput-interop"
    cache.mkdir(parents=True, exist_ok=True)
    built = cache / f"{version}-{digest_of_sources()}"
    # Several test processes may arrive at the same time; one builds.
    with (cache / f"{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            draft = cache / f"{version}.draft"
            shutil.rmtree(draft, ignore_errors=True)
            build(version, draft)
            for outdated in cache.glob(f"{version}-*"):
                shutil.rmtree(outdated)
            draft.rename(built)
        if not (built / ARCHIVE).exists():
            archive_classes(built)
    return built


def archive_classes(built: Path) -> None:
    """Run the program once so that the JVM archives its parsed classes (AppCDS), which saves a third of each start.

    If a JVM cannot do that, the archive is empty; a JVM ignores an archive that does not match it.
    """
    with tempfile.TemporaryDirectory() as scratch:
        store = Path(scratch) / "store"
        store.mkdir()
        questions = b"".join(json.dumps(question).encode() + b"\n" for question in QUESTIONS)
        draft = built / f"{ARCHIVE}.draft"
        subprocess.run(
            [
                *command(built, Path(scratch), "interop.Main", f"-XX:ArchiveClassesAtExit={draft}"),
                str(store),
                SMALL_SEGMENTS,
            ],
            input=questions,
            capture_output=True,
            timeout=BUILD_SECONDS_MAX,
        )
        draft.touch()
        draft.rename(built / ARCHIVE)


def digest_of_sources() -> str:
    """Return a digest of the sources."""
    digest = hashlib.sha256()
    for path in sorted(path for path in SOURCES.rglob("*") if path.is_file()):
        digest.update(str(path.relative_to(SOURCES)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def build(version: str, target: Path) -> None:
    """Let Maven fetch RocketMQ and compile the program into *target*."""
    command = [
        *("mvn", "-q", "-B", "-f", str(SOURCES / "pom.xml")),
        f"-Drocketmq.version={version}",
        f"-Drocketmq.line={version.partition('.')[0]}",
        f"-Dbuilt={target}",
        "package",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX, env={**os.environ, "MAVEN_OPTS": "-Xmx256m"}
    )
    if done.returncode != 0:
        shutil.rmtree(target, ignore_errors=True)
        if any(text in done.stdout for text in UNREACHABLE):
            pytest.skip(f"Maven cannot fetch RocketMQ: version={version}")
        pytest.fail(f"Maven cannot build the Java program: version={version}\n{done.stdout}{done.stderr}")
