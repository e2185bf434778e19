"""Errors as seen in a traceback, and in another process."""

from __future__ import annotations

import pickle
import re
import traceback

import pytest

from reput import errors
from reput.filter import FilterEvaluationError, FilterSyntaxError, parse
from reput.remoting.response_code import ResponseCode
from source_tree import ROOT

ALL = [getattr(errors, name) for name in errors.__all__]
REMEDIES = (ROOT / "docs" / "production.md").read_text("utf-8").partition("## Every error")[2].partition("\n## ")[0]


def make(kind: type[errors.ReputError]) -> errors.ReputError:
    """Return an error of a kind, with its own advice."""
    numbers = (7,) if issubclass(kind, errors.RequestRefused) else ()
    return kind(*numbers, "it is wrong: name=value", "Mend it.")


@pytest.mark.parametrize("kind", ALL)
def test_a_traceback_says_what_to_do(kind):
    """The advice is printed once, below the message."""
    text = "".join(traceback.format_exception(make(kind)))
    assert text.endswith("it is wrong: name=value\nMend it.\n")
    assert text.count("Mend it.") == 1


@pytest.mark.parametrize("kind", ALL)
def test_an_error_crosses_a_process_pool(kind):
    """With its text, advice and numbers."""
    error = make(kind)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (str(copy), copy.advice, vars(copy)) == (str(error), error.advice, vars(error))


def test_a_filters_error_crosses_a_process_pool():
    """With the position that it names."""
    with pytest.raises(FilterSyntaxError) as raised:
        parse("price >")
    copy = pickle.loads(pickle.dumps(raised.value))
    assert (str(copy), copy.position) == (str(raised.value), raised.value.position)


def first_cells() -> str:
    """Return the first column of the tables of errors on the page about production."""
    return "\n".join(line.split("|")[1] for line in REMEDIES.splitlines() if line.startswith("|"))


def test_every_error_has_a_remedy_on_the_page_about_production():
    """Each class that reput raises, and each of RocketMQ's codes that a client may get of a broker."""
    codes = {
        name
        for path in (ROOT / "core").rglob("*.py")
        for name in re.findall(r"ResponseCode\.([A-Z_]+)", path.read_text("utf-8"))
    } - {"SUCCESS"}
    assert len(codes) > 15
    expected = {*errors.__all__, FilterSyntaxError.__name__, FilterEvaluationError.__name__, *codes}
    assert set(re.findall(r"`([A-Za-z_]+)`", first_cells())) == expected
    assert codes <= {code.name for code in ResponseCode}


def test_each_sentence_on_the_page_about_production_is_one_that_reput_says():
    """A person searches the page for the text that stands in a log."""
    source = "\n".join(path.read_text("utf-8") for path in sorted((ROOT / "core").rglob("*.py")))
    sentences = re.findall(r'"([^"]+)"', first_cells())
    assert len(sentences) > 5
    assert [sentence for sentence in sentences if sentence not in source] == []
