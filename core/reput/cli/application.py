"""application: the verbs of `reput`, each with its module, its help, and an example that works when pasted."""

from __future__ import annotations

from typing import Annotated

import typer

import reput
from reput.cli.terminal.options import epilog, takes_settings
from reput.cli.verbs import (
    bench,
    check,
    clean,
    consume,
    demo,
    dispatcher,
    doctor,
    dump,
    export,
    get,
    group,
    plugin,
    query,
    rebuild,
    repair,
    send,
    serve,
    settings,
    status,
    topic,
)

__all__ = ["application"]

application = typer.Typer(
    name="reput",
    help="A durable message log in RocketMQ's store format; every view is a plugin in its own process.",
    epilog="`reput VERB --help` shows the options of a verb and an example.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
plugins = typer.Typer(help="Installed dispatchers.", rich_markup_mode=None)
dispatchers = typer.Typer(help="The process group of an open store.", rich_markup_mode=None)
topics = typer.Typer(help="The topics of a store.", rich_markup_mode=None)
groups = typer.Typer(help="The consumer groups of a store and their progress.", rich_markup_mode=None)
benches = typer.Typer(help="reput's own measurements, with the machine's facts.", rich_markup_mode=None)


@application.callback()
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


for name, verb, example in (
    ("demo", demo.demo, demo.EXAMPLE),
    ("send", send.send, send.EXAMPLE),
    ("serve", serve.serve, serve.EXAMPLE),
    ("consume", consume.consume, consume.EXAMPLE),
    ("get", get.get, get.EXAMPLE),
    ("query", query.query, query.EXAMPLE),
    ("dump", dump.dump, dump.EXAMPLE),
    ("check", check.check, check.EXAMPLE),
    ("clean", clean.clean, clean.EXAMPLE),
    ("rebuild", rebuild.rebuild, rebuild.EXAMPLE),
    ("repair", repair.repair, repair.EXAMPLE),
    ("status", status.status, status.EXAMPLE),
    ("settings", settings.settings, settings.EXAMPLE),
    ("export", export.export, export.EXAMPLE),
    ("doctor", takes_settings(doctor.doctor), doctor.EXAMPLE),
):
    application.command(name, epilog=epilog(example))(verb)

plugins.command("list", epilog=epilog(plugin.LIST_EXAMPLE))(plugin.list_plugins)
plugins.command("show", epilog=epilog(plugin.SHOW_EXAMPLE))(plugin.show_plugin)
plugins.command("new", epilog=epilog(plugin.NEW_EXAMPLE))(plugin.new_plugin)
plugins.command("test", epilog=epilog(plugin.TEST_EXAMPLE))(plugin.hold_to_contract)
application.add_typer(plugins, name="plugin")
dispatcher.register(dispatchers)
application.add_typer(dispatchers, name="dispatcher")
topic.register(topics)
application.add_typer(topics, name="topic")
group.register(groups)
application.add_typer(groups, name="group")

for name, measure in (
    ("append", bench.append),
    ("consume", bench.consume),
    ("dispatch", bench.dispatch),
    ("export", bench.export),
    ("growth", bench.growth),
    ("open", bench.open_store),
    ("read", bench.read),
    ("rebuild", bench.rebuild),
    ("ring", bench.ring),
    ("serve", bench.serve),
    ("sync", bench.sync),
):
    benches.command(name, epilog=epilog(bench.EXAMPLES[name]))(measure)
# This verb passes options and help through to the benchmark itself.
benches.command(
    "beside",
    hidden=True,
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)(bench.beside)
application.add_typer(benches, name="bench")
