"""failure_of: error message, advice and exit code for an exception that ends a command."""

from __future__ import annotations

import errno
import re

import typer
from msgspec import Struct

from reput.errors import ConfigError, MessageIllegal, OffsetOutOfRange, ReputError, RequestRefused
from reput.filter.errors import FilterSyntaxError

__all__ = ["ANSWER_IS_NO", "CANNOT_BE_USED", "INTERRUPTED", "WRONG_REQUEST", "Failure", "failure_of"]

ANSWER_IS_NO = 1
WRONG_REQUEST = 2
CANNOT_BE_USED = 3
INTERRUPTED = 130

# click's UsageError; depending on its version, typer bundles click or depends on it.
UsageError: type[typer.BadParameter] = typer.BadParameter.__mro__[1]

ADVICE_OF_ERRNO = {
    errno.ENOSPC: "Make room on the disk.",
    errno.EDQUOT: "Make room within your quota.",
    errno.EROFS: "The file system is read-only; verbs that only read work on it.",
    errno.EACCES: "You may not use it; see its owner and mode.",
    errno.EPERM: "You may not use it; see its owner and mode.",
    errno.EMFILE: "Raise the limit of open files: ulimit -n.",
}
# Messages of the argument parser.
NO_SUCH_COMMAND = re.compile(r"No such command '(.*?)'(?:\..*?'(.*?)'.*)?")
TOO_MANY = re.compile(r"Got unexpected extra argument\(?s?\)? \((.*)\)")
WITH_ITS_VALUE = re.compile(r"Option '(.*)' (requires an argument|does not take a value)")
ABOUT_A_VALUE = re.compile(r"'(.*)' ((?:is|has|does|lies|takes) .*)")
UNKNOWN_ADVICE = "Run it again with --traceback to see where it comes from."
OTHER_ADVICE = "See that the path exists and that you may use it."


class Failure(Struct, frozen=True):
    """Two lines for stderr, and the exit code."""

    sentence: str
    advice: str
    exit_code: int


def failure_of(error: Exception) -> Failure:
    """Return the failure for any *error*."""
    if isinstance(error, UsageError):
        return Failure(usage_sentence(error), usage_advice(error), WRONG_REQUEST)
    if isinstance(error, FilterSyntaxError):
        return Failure(f"the filter has a syntax error: {one_line(error)}", error.advice, WRONG_REQUEST)
    if isinstance(error, ReputError):
        return Failure(one_line(error), error.advice or UNKNOWN_ADVICE, exit_code(error))
    if isinstance(error, OSError):
        name = f" path={error.filename}" if error.filename is not None else ""
        sentence = f"the system refuses: reason={error.strerror or one_line(error)}{name}"
        return Failure(sentence, ADVICE_OF_ERRNO.get(error.errno or 0, OTHER_ADVICE), CANNOT_BE_USED)
    if isinstance(error, ModuleNotFoundError):
        extra = EXTRA_OF_MODULE.get((error.name or "").partition(".")[0])
        if extra:
            sentence = f"a part of reput is not installed: module={error.name}"
            return Failure(sentence, f'Install it with: pip install "reput[{extra}]"', CANNOT_BE_USED)
    sentence = f"this should not happen: {type(error).__name__}: {one_line(error)}"
    return Failure(sentence, "Run it again with --traceback and report what it prints.", CANNOT_BE_USED)


EXTRA_OF_MODULE = {"pyarrow": "arrow", "pyspark": "spark", "deltalake": "spark", "obstore": "backup"}


def exit_code(error: ReputError) -> int:
    """Return 2 for a wrong request, 3 for a resource that cannot be used."""
    wrong = isinstance(error, (ConfigError, MessageIllegal, OffsetOutOfRange, RequestRefused))
    return WRONG_REQUEST if wrong else CANNOT_BE_USED


def one_line(error: Exception) -> str:
    """Return the error's text without line breaks."""
    return " ".join(str(error).split())


def usage_sentence(error: typer.BadParameter) -> str:
    """Return what is wrong with the arguments, with ``name=value`` like every other error."""
    message = error.format_message().removesuffix(".")
    option = getattr(error, "option_name", None)
    if message.startswith("No such option"):
        if option is not None and option[1:].isdigit():
            # click takes a negative number for one-letter options, and reports the first.
            return f"a number must not be negative: begins_with={option}"
        near = getattr(error, "possibilities", None)
        return f"no such option: option={option}" + (f" near={','.join(sorted(near))}" if near else "")
    if refused := NO_SUCH_COMMAND.fullmatch(message):
        return f"no such command: command={refused[1]}" + (f" near={refused[2]}" if refused[2] else "")
    if refused := TOO_MANY.fullmatch(message):
        return f"too many arguments: arguments={refused[1]}"
    if refused := WITH_ITS_VALUE.fullmatch(message):
        return f"the option {refused[2]}: option={refused[1]}"
    # "Value error, " is the prefix of typer's type-checking library.
    reason = error.message.removesuffix(".").removeprefix("Value error, ")
    if message == "Missing command" and error.ctx is not None:
        return f"a command is missing: group={error.ctx.info_name}"
    parameter, hint = getattr(error, "param", None), getattr(error, "param_hint", None)
    if parameter is not None:
        name = parameter.opts[-1] if parameter.opts[-1].startswith("-") else parameter.metavar or parameter.name
    elif isinstance(hint, str):
        name = hint.strip("'")
    else:
        return reason[:1].lower() + reason[1:]
    if message.startswith("Missing"):
        return f"an argument is missing: argument={name}"
    if refused := ABOUT_A_VALUE.fullmatch(reason):
        return f"{name} {refused[2]}: {name}={refused[1]}"
    return f"{name} is wrong: {reason}"


def usage_advice(error: typer.BadParameter) -> str:
    """Return the advice to read the command's help."""
    context = error.ctx
    return f"See {context.command_path if context else 'reput'} --help."
