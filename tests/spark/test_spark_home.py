"""The SPARK_HOME of links: Spark's Python processes compile PySpark once, and nothing is done without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.find_spark_home import _find_spark_home

from reput_plugins.spark_export.spark_home import spark_home


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the user's cache directory, an empty one."""
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_spark_takes_for_zip_files_are_the_installed_packages():
    """Found by the path that Spark gives each Python process."""
    home = spark_home("local[2]")
    path = os.pathsep.join(map(str, (home / "python" / "lib").glob("*.zip")))
    program = "import py4j, pyspark; print(pyspark.__file__, py4j.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    ).stdout.split()
    assert all(Path(file).is_relative_to(home) and Path(file).is_file() for file in found)
    for name in ("bin", "jars"):
        assert sorted(os.listdir(home / name)) == sorted(os.listdir(Path(_find_spark_home()) / name))


def test_it_is_made_once(cache: Path):
    """The next session finds it."""
    made = spark_home("local[2]")
    inode = made.stat().st_ino
    assert spark_home("local[*]") == made
    assert made.stat().st_ino == inode
    assert list((cache / "reput").iterdir()) == [made]


def test_a_cluster_and_a_named_installation_have_their_own(monkeypatch: pytest.MonkeyPatch, cache: Path):
    """Only a Spark of this machine, which nobody has chosen, is started by links."""
    own = Path(_find_spark_home())
    assert spark_home("spark://10.0.0.7:7077") == own
    monkeypatch.setenv("SPARK_HOME", str(own))
    assert spark_home("local[2]") == own
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_is_done_without(cache: Path):
    """Then each start takes its full time."""
    cache.write_bytes(b"a file where the directory should be")
    assert spark_home("local[2]") == Path(_find_spark_home())
