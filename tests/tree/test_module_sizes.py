"""Sizes of modules and folders, and names of classes: each can be read whole, and found by its name."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict

from source_tree import ROOT, modules

LINES_MAX = 600
FOLDER_MAX = 25
# A module above the limit says in its docstring why it stays in one piece; this is the sentence's key.
STAYS = "stays in one module"


def test_a_long_module_says_why_it_is_not_split():
    """In its docstring; all others have up to 600 lines."""
    long = [module for module in modules() if len(module.path.read_text("utf-8").splitlines()) > LINES_MAX]
    silent = [
        module.source for module in long if STAYS not in (ast.get_docstring(module.tree) or "").replace("\n", " ")
    ]
    assert not silent


def test_a_folder_has_at_most_25_modules():
    """More of them want rooms."""
    counts = Counter(str(module.path.parent.relative_to(ROOT)) for module in modules())
    assert {folder: count for folder, count in counts.items() if count > FOLDER_MAX} == {}


def test_no_two_classes_have_the_same_name():
    """A name in an error, a log or a question leads to one place."""
    places = defaultdict(list)
    for module in modules():
        for node in module.nodes:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{module.source}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
