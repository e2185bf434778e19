"""The colours of the console: contrast by the formula of WCAG 2."""

from __future__ import annotations

import re

import pytest

from contrasts import AAA_TEXT, contrast
from source_tree import ROOT

STYLE = (ROOT / "core" / "reput" / "console" / "static" / "console.css").read_text("utf-8")
# What stands on what, as the style says it: text, links, warnings, buttons of danger, legends of charts.
PAIRS = [
    ("text", "ground"),
    ("text", "panel"),
    ("soft", "ground"),
    ("soft", "panel"),
    ("link", "ground"),
    ("link", "panel"),
    ("warn", "warn-ground"),
    ("warn", "ground"),
    ("one", "ground"),
    ("two", "ground"),
]
# Of lines that carry a meaning, WCAG 1.4.11.
MEANING = 3.0


def schemes() -> dict[str, dict[str, str]]:
    """Return the colours of the light and the dark scheme by name."""
    light, dark = (
        dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block)) for block in re.findall(r":root \{(.*?)\}", STYLE)
    )
    return {"light": light, "dark": {**light, **dark}}


def test_the_formula_is_that_of_wcag():
    """Black on white is 21 to 1, and pure red on white almost 4 to 1."""
    assert contrast("#" + "0" * 6, "#ffffff") == pytest.approx(21.0)
    assert contrast("#ff0000", "#ffffff") == pytest.approx(4.0, abs=0.005)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_a_contrast_of_seven_to_one(scheme):
    """In both schemes, on each ground that it stands on; lines of charts have three to one on their panel."""
    colours = schemes()[scheme]
    low = {pair: round(contrast(colours[pair[0]], colours[pair[1]]), 2) for pair in PAIRS}
    assert {pair: value for pair, value in low.items() if value < AAA_TEXT} == {}
    assert contrast(colours["one"], colours["panel"]) >= MEANING
    assert contrast(colours["two"], colours["panel"]) >= MEANING


def test_no_colour_stands_outside_the_schemes():
    """A colour in a rule of its own would escape this test."""
    assert re.findall(r"#[0-9a-f]{3,8}\b|rgba?\(|hsla?\(", re.sub(r":root \{.*?\}", "", STYLE)) == []
