"""The distribution: the content of wheel and sdist, and every way of installing them."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import reput
from archives import unpack_tar

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PACKAGES = {
    "reput": "core/reput",
    "reput_hooks": "hooks/reput_hooks",
    "reput_plugins": "plugins/reput_plugins",
    "pyspark_reput": "plugins/pyspark_reput",
}
DESCRIBE = """
import importlib.metadata, importlib.resources, json, reput, reput_hooks
found = importlib.metadata.distribution("reput")
print(json.dumps({
    "version": found.version,
    "entry_points": sorted([point.group, point.name, point.value] for point in found.entry_points),
    "typed": importlib.resources.files("reput").joinpath("py.typed").is_file(),
    "file": reput.__file__,
}))
"""

pytestmark = pytest.mark.slow


def run(command: list[str | Path], cwd: Path | None = None) -> str:
    """Run a command that must succeed, and return its output."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def build(target: str, source: Path, directory: Path) -> Path:
    """Build the wheel or the sdist of *source* into *directory*, with the installed hatchling."""
    run([sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", directory], cwd=source)
    (built,) = directory.iterdir()
    return built


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    """The source distribution."""
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory) -> Path:
    """The wheel, built from the unpacked sdist, like pip does if there is no wheel."""
    source = tmp_path_factory.mktemp("source")
    unpack_tar(sdist, source)
    (unpacked,) = source.iterdir()
    return build("wheel", unpacked, tmp_path_factory.mktemp("wheel"))


def source_files(suffixes: tuple[str, ...]) -> set[str]:
    """Return the files of all packages with one of *suffixes*, by their installed names."""
    return {
        str(Path(package, path.relative_to(ROOT / folder)))
        for package, folder in PACKAGES.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.name.endswith(suffixes)
    }


def test_the_wheel_holds_every_module_and_its_data(wheel):
    """Modules, type marks and the bundled store are installed; tests and benchmarks are not."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert source_files((".py", "py.typed", ".tar.gz", ".md")) <= names
    assert {name.split("/")[0] for name in names} == set(PACKAGES)
    assert {f"{package}/py.typed" for package in PACKAGES} <= names


def test_the_sdist_holds_what_the_tests_need(sdist):
    """Packagers can run the tests."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for needed in ("tests/conftest.py", "tests/golden/data/basic-5.3.tar.gz", "tox.ini", "LICENSE", "CHANGELOG.md"):
        assert needed in names


def test_the_sdist_holds_nothing_that_the_repository_ignores(sdist):
    """Hatchling reads the first .gitignore alone: a folder ignored by another would be in it."""
    if not (ROOT / ".git").exists():
        pytest.skip("no repository")
    listed = run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], ROOT)
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names - {"PKG-INFO"} <= set(listed.split("\0"))


def install(what: list[str], directory: Path) -> dict[str, object]:
    """Install *what* alone into a new environment, and return reput's state as seen by a program there."""
    venv.create(directory, with_pip=False, symlinks=True)
    # The dependencies, including hatchling, come from this environment, whose path follows that of the new one.
    packages = sysconfig.get_path("purelib", "venv", {"base": str(directory), "installed_base": str(directory)})
    Path(packages, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    python = directory / "bin" / "python"
    alone = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed"]
    run([sys.executable, "-m", "pip", "--python", python, "install", *alone, *what])
    described: dict[str, object] = json.loads(run([python, "-c", DESCRIBE]))
    described["command"] = run([directory / "bin" / "reput", "--version"]).strip()
    return described


def expected_entry_points() -> list[list[str]]:
    """Return (group, name, value) of every entry point that pyproject.toml declares."""
    declared = [["console_scripts", name, value] for name, value in PROJECT["scripts"].items()]
    for group, points in PROJECT["entry-points"].items():
        declared += [[group, name, value] for name, value in points.items()]
    return sorted(declared)


def check(described: dict[str, object], place: Path) -> None:
    """Compare an installation with pyproject.toml."""
    assert described["version"] == reput.__version__
    assert described["entry_points"] == expected_entry_points()
    assert described["typed"] is True
    assert Path(str(described["file"])).is_relative_to(place)
    assert described["command"] == f"reput {reput.__version__}"


def test_the_wheel_installs(wheel, tmp_path):
    """The way of a user: `pip install reput`."""
    check(install([str(wheel)], tmp_path / "venv"), tmp_path / "venv")


@pytest.mark.long
def test_the_sdist_installs(sdist, tmp_path):
    """The way of a packager."""
    check(install([str(sdist)], tmp_path / "venv"), tmp_path / "venv")


@pytest.mark.long
def test_an_editable_install_runs_the_working_tree(tmp_path):
    """The way of a developer: three source roots, one distribution."""
    check(install(["-e", str(ROOT)], tmp_path / "venv"), ROOT / "core")
