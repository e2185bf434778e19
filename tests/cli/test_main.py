"""One `reput` command: its output and its exit code."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import typer

import reput
from command_line import REPUT, run_reput
from reput.cli import main
from reput.cli.application import application


def test_without_a_verb_it_says_what_there_is(capsys):
    """Asking for help is not an error."""
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Usage: reput")
    assert "plugin" in out
    assert err == ""


def test_the_version_is_the_distribution_s(capsys):
    """It equals that of `import reput`."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"reput {reput.__version__}\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "sentence", "advice"),
    [
        (["explode"], "no such command: command=explode", "See reput --help."),
        (["--colour"], "no such option: option=--colour", "See reput --help."),
        (["plugin", "list", "--colour"], "no such option: option=--colour", "See reput plugin list --help."),
        (
            ["plugin", "list", "--format", "xml"],
            "--format is not one of 'text', 'json': --format=xml",
            "See reput plugin list --help.",
        ),
        (["get", "store", "orders"], "an argument is missing: argument=QUEUE_ID", "See reput get --help."),
        (["get", "store", "orders", "x", "0"], "of at least 0: QUEUE_ID=x", "See reput get --help."),
        (["get", "store", "orders", "0", "0", "0"], "arguments=0", "See reput get --help."),
        (
            ["get", "store", "orders", "0", "-12"],
            "a number must not be negative: begins_with=-1",
            "See reput get --help.",
        ),
        (["check", ""], "STORE is empty", "See reput check --help."),
        (["repair", "store"], "exactly one of the two: --cut-at=None --accept=None", "See reput repair --help."),
        (["repair", "store", "--cut-at", "x"], "of at least 0: --cut-at=x", "See reput repair --help."),
        (["repair", "store", "--accept", "5"], "two commit-log offsets: --accept=5", "See reput repair --help."),
        (["consume", "store", "t", "--tags", "a", "--sql", "b"], "--tags=a --sql=b", "See reput consume --help."),
        (["rebuild", "store", "--engine", "spark"], "given by --target: --engine=spark", "See reput rebuild --help."),
        (["plugin"], "a command is missing: group=plugin", "See reput plugin --help."),
    ],
)
def test_a_wrong_request_is_two_lines_and_exit_code_2(arguments, sentence, advice, capsys):
    """The error and the command for help; nothing on stdout."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    first, second = err.splitlines()
    assert first.startswith("reput: ")
    assert sentence in first
    assert second.strip() == advice


@pytest.mark.processes
@pytest.mark.parametrize(
    ("closed", "exit_code", "said"),
    [("<&-", 0, "nothing was sent"), (">&-", 3, "stdout is closed: descriptor=1"), ("2>&-", 2, "")],
)
def test_a_closed_standard_stream_takes_no_file_s_place(closed, exit_code, said, tmp_path):
    """Otherwise the next opened file would get its number, and output would be written into it."""
    arguments = "send store orders --nonsense" if closed == "2>&-" else "send store orders"
    ended = subprocess.run(
        ["bash", "-c", f"{REPUT} {arguments} {closed}"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == exit_code
    assert said in ended.stdout + ended.stderr


@pytest.mark.processes
def test_a_traceback_comes_only_when_it_is_asked_for():
    """`--traceback` may follow the verb, so that it can be appended to a failed line."""
    assert "Traceback" not in run_reput("explode").stderr
    shown = subprocess.run([REPUT, "explode", "--traceback"], capture_output=True, text=True)
    assert "Traceback (most recent call last)" in shown.stderr
    assert "explode" in shown.stderr


def test_behind_two_hyphens_everything_is_an_argument(capsys):
    """Even words that look like options."""
    assert main(["plugin", "--", "--traceback"]) == 2
    assert "--traceback" in capsys.readouterr().err


@pytest.mark.processes
def test_a_reader_that_has_seen_enough_is_no_error():
    """`reput … | head -1` ends silently."""
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run([REPUT, "plugin", "list"], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert ended.stderr == ""
    assert ended.returncode == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, typer.Abort])
def test_ctrl_c_is_exit_code_130(error, monkeypatch, capsys):
    """With any version of typer, and silently."""

    def interrupted(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("reput.cli.application.application", interrupted)
    assert main(["status", "store"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.processes
def test_help_loads_nothing_heavy():
    """Neither numpy nor rich nor an engine: help must appear at once."""
    code = (
        "import sys\n"
        "from reput.cli import main\n"
        "assert main(['--help']) == 0\n"
        "heavy = {'numpy', 'pyarrow', 'pyspark', 'rich', 'reput.store.message_store', 'reput.embedded.store'}\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def verbs() -> list[list[str]]:
    """Return the words of every verb."""
    everything = application()
    alone = [[command.name] for command in everything.registered_commands if not command.hidden]
    grouped = [
        [group.name, command.name]
        for group in everything.registered_groups
        for command in group.typer_instance.registered_commands
        if not command.hidden
    ]
    return alone + grouped


@pytest.mark.slow
@pytest.mark.parametrize("verb", verbs(), ids=" ".join)
def test_every_verb_has_help_with_an_example(verb, capsys):
    """The example contains the verb itself, and can be pasted."""
    assert main([*verb, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith(f"Usage: reput {' '.join(verb)} ")
    assert f"reput {' '.join(verb)}" in text.partition("Example:")[2]


def pasted(verb: list[str]) -> object:
    """Return the verb as a parameter. What `bench` measures, and what starts Spark, has shorter tests of its own."""
    marks = {
        "export": [pytest.mark.spark, pytest.mark.long],
        "lake": [pytest.mark.spark, pytest.mark.long],
        "bench": [pytest.mark.long],
    }
    return pytest.param(verb, id=" ".join(verb), marks=marks.get(verb[0], []))


# Their examples find no problem in the store.
SHOWS_NOTHING = (["dispatcher", "dead-letters"], ["group", "clean"], ["group", "dead-letters"])
SERVED_FOR_SECONDS = re.compile(r"timeout --preserve-status \d+ (reput [^|]+)")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Callable[[Sequence[str]], Path]:
    """Return a function from commands to the folder in which they have run, one after the other. Most examples begin
    with the same commands, so each beginning runs once."""
    folders: dict[tuple[str, ...], Path] = {}

    def folder_after(commands: Sequence[str]) -> Path:
        done = tuple(commands)
        if done not in folders:
            folder = tmp_path_factory.mktemp("example")
            if done:
                copy_contents(folder_after(done[:-1]), folder)
                words = shlex.split(done[-1])[1:]
                if words[0] == "export":
                    # Spark leaves its mark on the process, which a test must leave unchanged.
                    assert subprocess.run([REPUT, *words], cwd=folder, timeout=120).returncode == 0
                else:
                    with contextlib.chdir(folder):
                        assert run_reput(*words).code == 0
            folders[done] = folder
        return folders[done]

    return folder_after


def copy_contents(source: Path, target: Path) -> None:
    """Copy the content of one folder into another; holes in files stay holes."""
    subprocess.run(["cp", "-a", f"{source}/.", target], check=True)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("verb", [pasted(verb) for verb in verbs()])
def test_the_example_works_when_it_is_pasted(verb, tmp_path, prepared, capsys):
    """In an empty directory, right after the installation; the shell runs its last command."""
    main([*verb, "--help"])
    *before, example = capsys.readouterr().out.partition("Example:")[2].strip().split(" && ")
    assert f"reput {' '.join(verb)}" in example
    copy_contents(prepared(before), tmp_path)
    environment = {**os.environ, "PATH": f"{REPUT.parent}:{os.environ['PATH']}"}
    # With it, no line would have to be flushed to be seen.
    environment.pop("PYTHONUNBUFFERED", None)
    served = SERVED_FOR_SECONDS.fullmatch(example)
    with subprocess.Popen(
        ["sh", "-c", f"exec {served[1]}" if served else example],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        if served:
            # A slow machine may take longer to begin than it shall run, so it is stopped when it says that it runs.
            assert running.stdout is not None
            assert running.stdout.readline()
            running.terminate()
        try:
            shown, problems = running.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            running.kill()
            raise
    assert running.returncode == 0, problems
    assert served or bool(shown) == (verb not in SHOWS_NOTHING)


@pytest.mark.processes
def test_completion_is_installed_and_completes(tmp_path):
    """`reput --install-completion` writes it for the shell; it completes the verbs."""
    environment = {**os.environ, "HOME": str(tmp_path)}
    # The shell is the parent of the command.
    typed = ["bash", "-c", f"{REPUT} --install-completion && true"]
    installed = subprocess.run(typed, env=environment, capture_output=True, text=True, check=False)
    assert installed.returncode == 0, installed.stderr
    assert "_reput_completion" in next((tmp_path / ".bash_completions").iterdir()).read_text()
    asked = {**environment, "_REPUT_COMPLETE": "complete_bash", "COMP_WORDS": "reput se", "COMP_CWORD": "1"}
    completed = subprocess.run([REPUT], env=asked, capture_output=True, text=True, check=False)
    assert completed.stdout.split() == ["send", "serve", "settings"]
