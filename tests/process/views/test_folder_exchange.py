"""Two names are exchanged in one step."""

from __future__ import annotations

import pytest

from reput.process.views.folder_exchange import exchange_paths


def test_two_folders_change_places(tmp_path):
    """Each name then refers to the other folder."""
    for name in ("left", "right"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    exchange_paths(tmp_path / "left", tmp_path / "right")
    assert [path.name for path in (tmp_path / "left").iterdir()] == ["right"]
    assert [path.name for path in (tmp_path / "right").iterdir()] == ["left"]


def test_an_absent_one_is_an_error_that_changes_nothing(tmp_path):
    """The existing folder stays in its place."""
    (tmp_path / "left").mkdir()
    with pytest.raises(FileNotFoundError):
        exchange_paths(tmp_path / "left", tmp_path / "right")
    assert (tmp_path / "left").is_dir()
