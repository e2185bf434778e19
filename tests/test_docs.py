"""The documentation: its code runs, its links work, and its tables match the code."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import reput_hooks
from author_environment import AuthorEnvironment
from reput import errors
from reput.process.contract.host import promises
from reput.process.dispatcher.states import State
from reput.settings import Settings, load_settings
from reput.settings.spelling import ROCKETMQ_SPELLING, TLS_SPELLING
from reput_plugins.spark_export.spark_home import spark_home
from source_tree import ROOT, modules

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/README.md")])
# Its commands and code form files of projects, which have their own tests.
AUTHORS_PAGE = ROOT / "docs" / "dispatchers.md"
# Its code connects to a broker.
CLIENT_PAGE = ROOT / "docs" / "client.md"
PROJECT_PAGES = (AUTHORS_PAGE, CLIENT_PAGE, ROOT / "docs" / "web-servers.md")
# Marks a setting that is checked and stored, but not used yet.
NOT_USED_YET = "○"


def blocks(page: Path, language: str) -> list[str]:
    """Return the code of one language on *page*."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def table_rows(page: Path) -> list[list[str]]:
    """Return the cells of every row of every table on *page*, heads included."""
    lines = page.read_text("utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def first_cells(page: Path) -> set[str]:
    """Return the names in the first cells of all tables on *page*."""
    return {name for row in table_rows(page) for name in re.findall(r"`([^`]+)`", row[0])}


def with_blocks(language: str) -> list[object]:
    """Return every page with code of *language*, as parameters; pages about Spark need Spark."""
    return [
        pytest.param(page, id=str(page.relative_to(ROOT)), marks=[pytest.mark.spark] if page.stem == "spark" else [])
        for page in PAGES
        if blocks(page, language) and (page not in PROJECT_PAGES or language == "toml")
    ]


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_links_lead_somewhere(page):
    """Every linked file exists."""
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text("utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.processes
@pytest.mark.parametrize("page", with_blocks("python"))
def test_python_on_a_page_runs(page, tmp_path):
    """Unchanged, from top to bottom, in an empty folder."""
    script = tmp_path / "page.py"
    script.write_text("\n\n".join(blocks(page, "python")), "utf-8")
    # For a few short jobs the JVM starts sooner with its simplest compiler, and Python with less to compile.
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    if page.stem == "spark":
        environment["SPARK_HOME"] = str(spark_home("local[2]"))
    done = subprocess.run(
        [sys.executable, "-W", "error", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.processes
def test_python_on_the_page_about_clients_runs(reput_broker, tmp_path):
    """From top to bottom, beside a broker that serves the folder's store; only the port is another."""
    (tmp_path / "store").symlink_to(reput_broker.store)
    script = tmp_path / "page.py"
    text = "\n\n".join(blocks(CLIENT_PAGE, "python")).replace("127.0.0.1:9876", reput_broker.name_server)
    script.write_text(text, "utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", script], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "the first one",
        "True",
        "1000 stored",
        "resize the picture",
        "1 handled",
    ]


@pytest.mark.processes
@pytest.mark.parametrize("page", with_blocks("sh"))
def test_commands_on_a_page_run(page, tmp_path):
    """Every line that begins with `reput`, unchanged and in order, in an empty folder."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for line in "".join(blocks(page, "sh")).splitlines():
        if line.startswith("reput "):
            done = subprocess.run(
                ["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
            )
            assert done.returncode == 0, f"{line}\n{done.stderr}"


@pytest.mark.long
@pytest.mark.processes
def test_the_page_about_dispatchers_leads_to_one_that_works(tmp_path):
    """Running every command and writing every file of the page is enough."""
    script = ["set -euo pipefail"]
    written = re.compile(
        r"Put this into `([^`]+)`:\n\n```python\n(.*?)^```$|^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL
    )
    for path, content, commands in written.findall(AUTHORS_PAGE.read_text("utf-8")):
        script.append(commands or f"cat > {path} <<'END OF FILE'\n{content}END OF FILE")
    assert len(script) == 7, "a part of the page is not read"
    printed = AuthorEnvironment(tmp_path).succeed("\n".join(script))
    # The plugin's own test, and one for each clause.
    assert f"{len(promises()) + 1} passed" in printed
    assert f"{len(promises())} kept" in printed


@pytest.mark.parametrize("page", with_blocks("toml"))
def test_configuration_on_a_page_is_accepted(page, tmp_path):
    """Every setting in it is known."""
    for number, text in enumerate(blocks(page, "toml")):
        if "[project" not in text:
            config = tmp_path / f"{number}.toml"
            config.write_text(text, "utf-8")
            load_settings(config)


def test_the_readme_runs_the_tests_as_ci_does():
    """The README's test command is the one that CI uses."""
    (command,) = [block.strip() for block in blocks(ROOT / "README.md", "sh") if "tox" in block]
    assert command in (ROOT / ".ci" / "run").read_text("utf-8")


def shown_default(value: object) -> str:
    """Return a default as the table writes it."""
    if value in ("", {}):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{','.join(value)}`" if isinstance(value, tuple) else f"`{value}`"


def test_every_setting_is_documented():
    """With RocketMQ's spelling and the default."""
    documented = {
        row[0].strip(f"` {NOT_USED_YET}"): (row[1].strip("`"), row[2])
        for row in table_rows(ROOT / "docs" / "settings.md")
        if row[0].startswith("`")
    }
    defaults = Settings()
    assert documented == {
        field: (TLS_SPELLING.get(field) or ROCKETMQ_SPELLING.get(field, ""), shown_default(getattr(defaults, field)))
        for field in Settings.__struct_fields__
    }


@pytest.mark.slow
def test_a_setting_is_said_to_do_something_if_it_does():
    """The mark means that a setting is not used yet; it must be removed once the setting is used."""
    code = " ".join(
        module.path.read_text("utf-8")
        for module in modules()
        if not module.name.startswith("reput.settings") or module.name == "reput.settings.loading"
    )
    words = set(re.findall(r"\w+", code))
    marked = {
        row[0].strip(f"` {NOT_USED_YET}"): NOT_USED_YET in row[0]
        for row in table_rows(ROOT / "docs" / "settings.md")
        if row[0].startswith("`")
    }
    assert marked == {field: field not in words for field in Settings.__struct_fields__}


def test_every_error_is_documented():
    """With its parent class and its docstring."""
    documented = {row[0].strip("`"): row[1:] for row in table_rows(ROOT / "docs" / "operators.md") if len(row) == 3}
    for name, error in vars(errors).items():
        if inspect.isclass(error) and error.__module__ == errors.__name__:
            parents = ", ".join(f"`{parent.__name__}`" for parent in error.__bases__)
            assert documented[name] == [parents, " ".join(str(error.__doc__).split())]


def test_every_state_is_documented():
    """In the guide for operators and in the picture for developers."""
    assert {state.name for state in State} <= first_cells(ROOT / "docs" / "operators.md")
    picture = (ROOT / "core" / "README.md").read_text("utf-8")
    assert [state.name for state in State if state.name not in picture] == []


@pytest.mark.spark
def test_every_option_of_a_spark_read_is_documented():
    """Users need not read the source code."""
    from pyspark_reput.read_options import OPTION_NAMES

    assert set(OPTION_NAMES) <= first_cells(ROOT / "docs" / "spark.md")


def public_methods(interface: type) -> set[str]:
    """Return the names that *interface* itself defines, including attributes."""
    names = {*vars(interface), *inspect.get_annotations(interface)}
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize(
    "interface",
    [reput_hooks.CommitLogDispatcher, reput_hooks.DispatcherContext, reput_hooks.DispatcherDescription],
    ids=lambda interface: interface.__name__,
)
def test_every_word_of_the_interface_is_documented(interface):
    """Authors of dispatchers find each method, attribute and declaration on one page."""
    names = {re.match(r"\w+", name)[0] for name in first_cells(ROOT / "docs" / "dispatchers.md")}
    assert public_methods(interface) <= names


def test_every_hook_is_documented():
    """Where they are called, and what happens if they raise."""
    hooks = {name for name in reput_hooks.__all__ if name.startswith("reput_")}
    assert hooks <= first_cells(ROOT / "docs" / "dispatchers.md")
    assert hooks <= first_cells(ROOT / "hooks" / "README.md")


def test_every_clause_of_the_contract_is_documented():
    """With the promise that it tests."""
    documented = {row[0].strip("`"): row[1] for row in table_rows(AUTHORS_PAGE) if len(row) == 2}
    assert promises().items() <= documented.items()


def test_the_example_dispatcher_is_the_one_that_is_tested():
    """The code on the page is the code in the example project."""
    source = ROOT / "tests" / "plugin_distribution" / "src" / "reput_topic_count" / "__init__.py"
    assert source.read_text("utf-8") in blocks(ROOT / "docs" / "dispatchers.md", "python")
