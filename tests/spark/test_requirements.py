"""A missing requirement of an export is reported in one sentence, with what to install."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput.errors import DispatcherError
from reput_plugins.spark_export import requirements


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch):
    """The advice is the extra with these packages."""
    monkeypatch.setattr(requirements, "find_spec", lambda name: None if name != "pyarrow" else object())
    with pytest.raises(DispatcherError, match="missing=pyspark,deltalake") as raised:
        requirements.require_packages()
    assert 'pip install "reput[spark]"' in raised.value.advice


def test_missing_java_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A wrong JAVA_HOME is named."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(DispatcherError, match=f"Spark needs Java, which is missing: JAVA_HOME={tmp_path}"):
        requirements.find_java()


@pytest.mark.parametrize(("version", "accepted"), [("11.0.2", False), ("1.8.0_292", False), ("17.0.1", True)])
def test_a_java_that_is_too_old_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, accepted: bool):
    """Spark 4 needs Java 17."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2021-01-19' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if accepted:
        assert requirements.find_java() == java
    else:
        with pytest.raises(DispatcherError, match="Spark needs a later Java"):
            requirements.find_java()
