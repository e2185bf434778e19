"""application: the verbs of `reput`, each with its module, its help, and an example that works when pasted.

Loading all verbs, and describing their options to the parser, takes longer than most verbs do. So a command loads the
verb that it names, and only help and wrong names load all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

import reput
from reput.cli.terminal.options import epilog

__all__ = ["application"]

# The modules of verbs, in the order of the help. Each has a function of the verb's name, and its EXAMPLE.
VERBS = (
    "demo",
    "send",
    "serve",
    "follow",
    "promote",
    "consume",
    "get",
    "query",
    "dump",
    "check",
    "clean",
    "rebuild",
    "repair",
    "backup",
    "restore",
    "status",
    "top",
    "console",
    "password",
    "settings",
    "export",
    "doctor",
)
# Verbs that do not stand in a module of their name: that of the verb they undo, which has their EXAMPLES, or one in a
# folder below.
MODULE_OF = {
    "restore": "backup",
    "follow": "copies.follow",
    "promote": "copies.promote",
    "top": "watching.top",
    "console": "watching.console",
    "password": "watching.password",
}
# The modules of groups of verbs; each registers its own.
GROUPS = {
    "plugin": "Installed dispatchers.",
    "dispatcher": "The process group of an open store.",
    "topic": "The topics of a store.",
    "group": "The consumer groups of a store and their progress.",
    "lake": "The files of a lake.",
    "bench": "reput's own measurements, with the machine's facts.",
}


def application(words: Sequence[str] = ()) -> typer.Typer:
    """Return the command line for the arguments *words*: with the verb that they begin with, otherwise with all."""
    found = typer.Typer(
        name="reput",
        help="A durable message log in RocketMQ's store format; every view is a plugin in its own process.",
        epilog="`reput VERB --help` shows the options of a verb and an example.",
        invoke_without_command=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    found.callback()(reput_itself)
    named = words[0] if words else ""
    wanted = (named,) if named in VERBS or named in GROUPS else (*VERBS, *GROUPS)
    for name in wanted:
        module = import_module(f"reput.cli.verbs.{MODULE_OF.get(name, name)}")
        if name in GROUPS:
            group = typer.Typer(help=GROUPS[name], rich_markup_mode=None)
            module.register(group)
            found.add_typer(group, name=name)
        else:
            found.command(name, epilog=epilog(module.EXAMPLES[name] if name in MODULE_OF else module.EXAMPLE))(
                getattr(module, name)
            )
    return found


def reput_itself(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show the traceback of an error; allowed anywhere on the command line.")
    ] = False,
) -> None:
    del traceback  # `main` removes it from the arguments; it is here for the help.
    if version:
        print(f"reput {reput.__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())
