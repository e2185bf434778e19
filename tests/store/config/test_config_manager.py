"""ConfigManager: a broker's data in ``config/`` is on disk once that is confirmed."""

from __future__ import annotations

from pathlib import Path

from reput.store.config.topic_config_manager import TopicConfig, TopicConfigManager
from reput.store.disk.files import Files
from small_store import open_store


class NotedFiles(Files):
    """Records which directories were forced before a file got its name."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Path]] = []

    def force_directory(self, path: Path) -> None:
        self.calls.append(("force", path))
        super().force_directory(path)

    def replace(self, path: Path, data: bytes) -> None:
        self.calls.append(("replace", path))
        super().replace(path, data)


def test_a_new_folder_of_configuration_is_on_disk_before_what_is_in_it(tmp_path):
    """Otherwise a power cut would remove the folder's name, and the confirmed files in it."""
    files = NotedFiles()
    manager = TopicConfigManager(tmp_path, files)
    manager.put("orders", TopicConfig(topic_name="orders"))
    manager.persist()
    assert files.calls == [("force", tmp_path), ("replace", tmp_path / "config" / "topics.json")]
    manager.put("invoices", TopicConfig(topic_name="invoices"))
    manager.persist()
    assert files.calls.count(("force", tmp_path)) == 1


def test_drafts_of_files_whose_writing_was_killed_go_at_the_next_opening(tmp_path):
    """No program would write them again; files that are not drafts of reput stay."""
    store = tmp_path / "store"
    open_store(store).close(views_complete=True)
    config = store / "config"
    config.mkdir()
    for name in ("topics.json.draft", "consumerOffset.json.bak.draft", "topics.json", "notes.draft"):
        (config / name).write_text("{}")
    for name in ("store.json", "found_queues", "delay_offsets", "transactions", "epochs"):
        (store / "reput" / f"{name}.draft").touch()
    open_store(store).close(views_complete=True)
    assert sorted(path.name for path in config.iterdir()) == ["notes.draft", "topics.json"]
    assert not [*(store / "reput").glob("*.draft")]
