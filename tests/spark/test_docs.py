"""The page on Spark: its tables agree with the code."""

from __future__ import annotations

import re

from reput.table import RowFormat
from reput_plugins.spark_export import SparkExportOptions
from source_tree import ROOT

PAGE = (ROOT / "docs" / "spark.md").read_text("utf-8")


def test_every_column_is_on_the_page():
    """The page has all columns of a row, and no others."""
    section = PAGE.partition("\n## Columns\n")[2].partition("\n## ")[0]
    cells = [line.strip("|").split("|")[0] for line in section.splitlines() if line.startswith("|")]
    assert {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)} == set(RowFormat().schema().names)


def test_every_option_of_the_dispatcher_is_on_the_page():
    """Each is in the example section."""
    section = PAGE.partition("[dispatchers.spark_export]")[2].partition("[spark]")[0]
    assert set(re.findall(r"^(\w+) = ", section, re.M)) == set(SparkExportOptions.__struct_fields__)
