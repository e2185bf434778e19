"""`reput plugin list`."""

from __future__ import annotations

import json

from reput.cli import main


def test_the_built_in_dispatchers_are_listed(capsys):
    """With the distribution that brings them, like everybody else's."""
    main(["plugin", "list", "--format", "json"])
    rows = {row["name"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert {"consume_queue", "index"} <= rows.keys()
    assert rows["consume_queue"]["distribution"] == "reput"
    assert rows["consume_queue"]["module"] == "reput_plugins.consume_queue"
