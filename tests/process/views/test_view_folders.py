"""The folders of a view, and how they are emptied."""

from __future__ import annotations

import pytest

from reput.errors import DamagedStore, DispatcherError
from reput.process.views.view_folders import ViewFolders


@pytest.fixture
def folders(tmp_path):
    """A view with data in both of its folders."""
    folders = ViewFolders(tmp_path, "index", ("index",))
    folders.prepare()
    (folders.directory / "cursor").touch()
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "file").touch()
    return folders


def test_only_declared_folders_are_given(folders, tmp_path):
    """A plugin gets only the places in the store that it declared."""
    assert folders.folder("index") == tmp_path / "index"
    with pytest.raises(DispatcherError, match="folder=commitlog"):
        folders.folder("commitlog")


def test_emptying_removes_cursor_and_data(folders, tmp_path):
    """It leaves an empty folder and no intent."""
    folders.empty()
    assert list(folders.directory.iterdir()) == []
    assert not (tmp_path / "index").exists()
    assert not folders.intent.exists()


def test_an_emptying_that_was_cut_short_goes_on_at_the_next_start(folders, tmp_path, monkeypatch):
    """Whatever the crash left in the two."""

    def crash(path):
        raise OSError("crash")

    monkeypatch.setattr("reput.process.views.view_folders.shutil.rmtree", crash)
    with pytest.raises(OSError, match="crash"):
        folders.empty()
    monkeypatch.undo()
    folders.prepare()
    assert list(folders.directory.iterdir()) == []
    assert not (tmp_path / "index").exists()
    assert not folders.intent.exists()


@pytest.mark.parametrize("name", ["views", "views/index"])
def test_a_file_in_the_place_of_a_folder_is_named(tmp_path, name):
    """The error says which one is in the way."""
    path = tmp_path / "reput" / name
    path.parent.mkdir(parents=True)
    path.touch()
    folders = ViewFolders(tmp_path, "index", ())
    for call in (folders.prepare, folders.is_empty):
        with pytest.raises(DamagedStore, match=f"(?m)this is not a directory: path={path}$") as caught:
            call()
        assert caught.value.advice.startswith("Move it away")
