"""`reput plugin new`: a project that works without changes."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib

import pytest

from author_environment import AuthorEnvironment
from command_line import run_reput
from reput.cli.plugin_project import ProjectNames, write_project
from reput.errors import ConfigError
from source_tree import ROOT


@pytest.mark.slow
@pytest.mark.processes
def test_a_new_project_installs_and_passes_its_tests(tmp_path):
    """By the commands on its page, without any change."""
    author = AuthorEnvironment(tmp_path)
    written = author.succeed("reput plugin new word_count").splitlines()
    assert "reput-word-count/src/reput_word_count/__init__.py" in written
    author.succeed("cd reput-word-count && pip install -e '.[test]'")
    assert "reput-word-count" in author.succeed("reput plugin list")
    assert " passed, 1 skipped" in author.succeed("cd reput-word-count && pytest -q")


@pytest.mark.long
@pytest.mark.processes
def test_a_new_project_has_types(tmp_path):
    """By its own settings, which are strict."""
    author = AuthorEnvironment(tmp_path)
    author.succeed("reput plugin new word_count")
    assert "Success" in author.succeed("cd reput-word-count && pip install -e '.[test]' >&2 && mypy")


def test_a_new_project_is_formatted_and_lacks_nothing(tmp_path):
    """It looks hand-written."""
    done = run_reput("plugin", "new", "w", "--directory", tmp_path / "w")
    assert done.code == 0, done.stderr
    assert "pip install -e" in done.stderr
    assert "$" not in "".join(path.read_text("utf-8") for path in (tmp_path / "w").rglob("*") if path.is_file())
    compiled = [sys.executable, "-W", "error", "-m", "compileall", "-q", tmp_path / "w"]
    assert subprocess.run(compiled).returncode == 0


@pytest.mark.parametrize("name", ["Word", "-word", "9", "_x", "a__b", "a-_b", "a-", "ä", "a.b", "a\n", ""])
def test_a_name_that_makes_no_module_is_refused(name, tmp_path):
    """The module, the class and the distribution have that name."""
    done = run_reput("plugin", "new", "--directory", tmp_path / "w", "--", name)
    assert done.code == 2
    assert f"name={name!r}" in done.stderr
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize(
    "name", ["none", "true", "cursor", "options", "saved", "counter", "commit_log_dispatcher", "word-count", "a-b_c2"]
)
def test_a_name_may_be_any_word(name, tmp_path):
    """It must not collide with names in the module."""
    for path in write_project(ProjectNames(name), tmp_path):
        if path.suffix == ".py":
            tree = ast.parse(path.read_text())
            names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
            names += [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
            assert len(names) == len(set(names))


def test_a_name_with_hyphens_makes_a_module_with_underscores(tmp_path):
    """The dispatcher keeps its own name; the project has tox and a licence."""
    names = ProjectNames("word-count")
    assert (names.name, names.module, names.distribution) == ("word-count", "reput_word_count", "reput-word-count")
    write_project(names, tmp_path)
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["reput.dispatchers"] == {"word-count": "reput_word_count"}
    assert project["license"] == "Apache-2.0"
    assert "[testenv:types]" in (tmp_path / "tox.ini").read_text()


@pytest.mark.parametrize(("name", "why"), [("hooks", "module=reput_hooks"), ("x" * 64, "size=64 max=63")])
def test_a_name_that_could_not_be_installed_is_refused(name, why):
    """A project named hooks would replace `reput_hooks`."""
    with pytest.raises(ConfigError, match=why):
        ProjectNames(name)
    assert ProjectNames("x" * 63).name == "x" * 63


def test_a_name_that_is_taken_is_refused(tmp_path):
    """Two dispatchers with the same name would be ambiguous."""
    done = run_reput("plugin", "new", "index", "--directory", tmp_path / "w")
    assert done.code == 2
    assert "dispatcher=index distribution=reput" in done.stderr


def test_nothing_is_written_over(tmp_path):
    """A nonempty folder is left alone."""
    (tmp_path / "mine").write_text("precious")
    done = run_reput("plugin", "new", "w", "--directory", tmp_path)
    assert done.code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_templates_are_in_the_package():
    """They are not Python files, so that no tool checks or imports them."""
    templates = ROOT / "core" / "reput" / "cli" / "plugin_project" / "templates"
    assert [path for path in templates.rglob("*") if path.is_file() and path.suffix != ".template"] == []
