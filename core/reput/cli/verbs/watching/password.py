"""`reput password`: a user of a console, with the salted hash of a password."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from reput.cli.terminal.output import write_line
from reput.errors import ConfigError

__all__ = ["EXAMPLES", "password"]

EXAMPLES = {"password": "echo 'correct horse battery' | reput password users.txt ada"}


def password(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File of accounts; created if missing.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.", show_default=False)],
) -> None:
    """Add a user to the accounts of a console, or change a user's password.

    The password is asked for twice at a terminal; otherwise it is the first line of stdin. FILE gets a salted hash of
    it, and mode 600. To remove a user, delete the line. A running console has read its file when it started.
    """
    from reput.console.accounts import hashed, parse_account
    from reput_hooks import replace_durably

    if not name.strip() or name != name.strip() or ":" in name or name.startswith("#") or not name.isprintable():
        raise ConfigError(f"this cannot be the name of a user: name={name!r}", "Give a name without a colon.")
    if sys.stdin.isatty():
        given = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        given = sys.stdin.readline().rstrip("\r\n")
    entry = hashed(given).line(name)
    try:
        lines = file.read_text("utf-8").splitlines() if file.exists() else []
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the file of users cannot be read: path={file} error={error}") from None
    others = [line for line in lines if line.startswith("#") or (parse_account(line) or ("",))[0] != name]
    replace_durably(file, "".join(f"{line}\n" for line in [*others, entry]).encode(), mode=0o600)
    write_line(f"{'changed' if len(others) < len(lines) else 'added'}: {name}")
