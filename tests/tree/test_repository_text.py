"""The repository's text is about the product, without references that only its makers understand."""

from __future__ import annotations

import ast
import re
import subprocess

import pytest

from source_tree import ROOT, modules

SUFFIXES = {".py", ".md", ".toml", ".ini", ".cfg", ".txt", ".sh", ".properties", ""}
# Split into pieces, so that this file does not match itself.
FORBIDDEN = {
    "a path of one machine": r"(?<![\w.~])/(?:wor" + r"k|op" + r"t|roo" + r"t|hom" + r"e)/\w",
    "the number of an issue": r"\b(?:issu" + r"e|tick" + r"et|PR)s?\s+#?\d+\b|(?<![\w&/#])#\d+\b",
    "unfinished work": r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b(?!X)",
    "a package index": r"\bpypi\.(?:org|python\.org)|files\.python"
    + r"hosted|repo1\.mav"
    + r"en|registry\.np"
    + r"mjs",
}


def texts() -> list[tuple[str, str]]:
    """Return name and text of every text file of the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode != 0:
        pytest.skip("not a checkout")
    paths = [ROOT / name for name in listed.stdout.splitlines()]
    return [
        (str(path.relative_to(ROOT)), path.read_text("utf-8"))
        for path in paths
        if path.is_file() and path.suffix in SUFFIXES and "licen" not in path.name.lower()
    ]


@pytest.mark.parametrize("what", FORBIDDEN)
def test_the_repository_does_not_mention(what):
    """A clone contains nothing that only its makers understand."""
    pattern = re.compile(FORBIDDEN[what])
    found = [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found


def test_every_module_says_what_it_holds():
    """It begins with a docstring."""
    assert [module.source for module in modules() if not ast.get_docstring(module.tree)] == []


def test_no_module_is_named_for_nothing():
    """`util` and similar names are signs that a module has no purpose yet."""
    names = {piece for module in modules() for piece in module.name.split(".")}
    assert names.isdisjoint({"util", "utils", "helper", "helpers", "common", "base", "misc"})
