"""The output of the command line for each exception."""

from __future__ import annotations

import inspect

import pytest

from reput import errors
from reput.cli.terminal.failure import failure_of
from reput.filter import parse


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("unknown setting: name=x"), 2),
        (errors.MessageIllegal("topic is too long: size=128"), 2),
        (errors.OffsetOutOfRange("no such offset: commit_log_offset=1"), 2),
        (errors.NotAStore("no such directory: store=x"), 3),
        (errors.StoreLocked("another process writes: pid=1"), 3),
        (errors.StoreReadOnly("read-only"), 3),
        (errors.DamagedStore("bytes are wrong"), 3),
        (errors.DispatcherError("not enabled"), 3),
        (errors.BrokerError("refused"), 3),
        (errors.RingError("no ring"), 3),
        (PermissionError(13, "Permission denied", "/x"), 3),
        (ModuleNotFoundError("No module named 'deltalake'", name="deltalake"), 3),
        (ModuleNotFoundError("No module named 'nonsense'", name="nonsense"), 3),
        (RuntimeError("two\nlines"), 3),
    ],
)
def test_an_error_is_a_sentence_an_advice_and_an_exit_code(error: Exception, code: int):
    """2: the request is wrong; 3: the store, broker or machine cannot be used."""
    failure = failure_of(error)
    assert failure.exit_code == code
    assert "\n" not in failure.sentence + failure.advice
    assert failure.sentence
    assert failure.advice


@pytest.mark.parametrize(
    "error",
    [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, errors.ReputError)],
)
def test_every_error_has_an_advice(error: type[errors.ReputError]):
    """Its own, if it has one."""
    # RocketMQ's code for a refusal comes first.
    numbers = (1,) if error is errors.RequestRefused else ()
    assert failure_of(error(*numbers, "text")).advice
    assert failure_of(error(*numbers, "text", "Do this.")).advice == "Do this."
    assert failure_of(error(*numbers, "text")).sentence == "text"


def test_a_filter_that_does_not_parse_is_a_wrong_request():
    """The error has the position."""
    with pytest.raises(ValueError, match="position") as caught:
        parse("a >")
    failure = failure_of(caught.value)
    assert failure.exit_code == 2
    assert "position=" in failure.sentence


def test_what_the_system_refuses_is_named():
    """With the path and the reason."""
    assert failure_of(PermissionError(13, "Permission denied", "/x")).sentence == (
        "the system refuses: reason=Permission denied path=/x"
    )


def test_a_missing_extra_is_named():
    """With the command that installs it."""
    assert 'pip install "reput[spark]"' in failure_of(ModuleNotFoundError("no", name="deltalake")).advice
