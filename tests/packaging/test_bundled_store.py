"""The store that `reput demo` re-puts."""

from __future__ import annotations

from importlib.resources import as_file, files

from archives import unpack_tar
from golden_sets import tree_digest


def test_the_bundled_store_is_what_the_broker_wrote(golden_read_only, broker_properties, tmp_path):
    """Every byte of it comes from the broker."""
    with as_file(files("reput") / "demo" / "rocketmq_store.tar.gz") as packed:
        unpack_tar(packed, tmp_path / "bundle")
    golden = golden_read_only("basic-5.3")
    assert tree_digest(tmp_path / "bundle" / "store") == tree_digest(golden / "store")
    assert (tmp_path / "bundle" / "broker.properties").read_bytes() == broker_properties("basic-5.3").read_bytes()
