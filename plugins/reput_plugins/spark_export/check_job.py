"""check_lake: compare a lake with the log that it was made of."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from reput.errors import ConfigError
from reput.store.state.identity import require_store
from reput_plugins.spark_export.requirements import require_format, require_packages

if TYPE_CHECKING:
    from reput_plugins.spark_export.proof.report import LakeCheckReport, TablesCheckReport

__all__ = ["check_lake"]

ENGINES = ("local", "spark")


def check_lake(
    store: Path | str,
    lake: Path | str,
    *,
    engine: str = "local",
    name: str | None = None,
    store_id: str | None = None,
    settings: Mapping[str, str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    lake_format: str | None = None,
    catalog: str | None = None,
    catalog_table: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> LakeCheckReport | TablesCheckReport:
    """Compare each row of the table *lake* with the log of *store*, and each record of the log with the lake.

    *lake* is the table of the log, one typed table, or a folder of typed tables. A typed table is compared together
    with its dead letters: each message has a row or a dead letter. The fields of the bodies are not decoded again.

    The check only reads. It may run beside a running export and a running broker.

    Args:
        engine: "local": threads of this process; "spark": Spark's workers, which must see the store and the lake under
            the same paths. The report is the same.
        name: name of the export in the table; None: the table's only export, or the default name if there are several.
        store_id: the store's id in the lake; None: recognise it by its own id, or by the marks in the lake.
        settings: ``spark.*`` settings, for Spark.
        storage_options: settings of the Delta library for a lake in an object store, such as ``AWS_REGION``.
        lake_format: ``delta`` or ``iceberg``; None: that of the folder, ``delta`` in an object store.
        catalog, catalog_table: as for `export`.
        on_progress: called at intervals with the checked bytes of log and lake, and their total.

    Raises:
        DispatcherError: a package is missing, the lake is absent or cannot be read, or Spark fails.
        ConfigError: *lake* was not written by reput; the engine is unknown.
        StoreError: *store* is not a store, or the lake has no rows of this store.
    """
    if engine not in ENGINES:
        raise ConfigError(f"the engine is unknown: engine={engine} known={','.join(ENGINES)}")
    require_store(Path(store))
    require_packages(*(("pandas",) if engine == "spark" else ()))
    require_format(lake_format or "delta")
    # Imported after the check, which reports missing packages with a clear message.
    from reput_plugins.spark_export.lakes.opening import location_as_found
    from reput_plugins.spark_export.proof.tables_check import compare_any

    location = location_as_found(lake, storage_options, lake_format, catalog, catalog_table)
    compare = functools.partial(
        compare_any, Path(store).absolute(), location, name=name, store_id=store_id, on_progress=on_progress
    )
    if engine == "local":
        return compare()
    from reput_plugins.spark_export.engine.ranges import engine_session
    from reput_plugins.spark_export.proof.on_spark import spark_runner

    with engine_session(settings or {}, f"check {store}") as session:
        return compare(run=spark_runner(session))
