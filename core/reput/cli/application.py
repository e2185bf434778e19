"""application: the verbs of `reput`, each with its module, its help, and an example that works when pasted."""

from __future__ import annotations

from typing import Annotated

import typer

import reput
from reput.cli import doctor, dump, export, get, plugin, query, send, status

__all__ = ["application"]

application = typer.Typer(
    name="reput",
    help="A durable message log in RocketMQ's store format; every view of it is a plugin in a process of its own.",
    epilog="`reput VERB --help` shows the options of a verb, and an example.",
    add_completion=False,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
plugins = typer.Typer(help="Dispatchers that are installed.", rich_markup_mode=None)


@application.callback()
def reput_itself(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where an error comes from; at any place.")
    ] = False,
) -> None:
    del traceback  # Taken out of the arguments by `main`; it is here for the help.
    if version:
        print(f"reput {reput.__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


for name, verb, example in (
    ("send", send.send, send.EXAMPLE),
    ("get", get.get, get.EXAMPLE),
    ("query", query.query, query.EXAMPLE),
    ("dump", dump.dump, dump.EXAMPLE),
    ("status", status.status, status.EXAMPLE),
    ("export", export.export, export.EXAMPLE),
    ("doctor", doctor.doctor, doctor.EXAMPLE),
):
    application.command(name, epilog=f"\b\nExample:\n  {example}")(verb)
plugins.command("list", epilog=f"\b\nExample:\n  {plugin.LIST_EXAMPLE}")(plugin.list_plugins)
application.add_typer(plugins, name="plugin")
