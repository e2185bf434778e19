"""Requirements of an export beyond Python: pyspark, pyarrow, deltalake, and Java unless Spark runs elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from reput.errors import DispatcherError

__all__ = ["find_java", "require_format", "require_packages"]

PACKAGES = ("pyspark", "pyarrow", "deltalake")
FORMAT_PACKAGES = {"iceberg": ("pyiceberg", "sqlalchemy")}
JAVA_VERSION_MIN = 17


def require_packages(*further: str) -> None:
    """Check that the packages every export needs, and *further* ones of the extra ``spark``, are installed.

    Raises:
        DispatcherError: some are missing; the message names them.
    """
    missing = [name for name in (*PACKAGES, *further) if find_spec(name) is None]
    if missing:
        raise DispatcherError(
            f"the Spark part needs packages that are not installed: missing={','.join(missing)}",
            'Install them with: pip install "reput[spark]".',
        )


def require_format(lake_format: str) -> None:
    """Check that the packages of a lake's format are installed.

    Raises:
        DispatcherError: some are missing; the message names them.
    """
    missing = [name for name in FORMAT_PACKAGES.get(lake_format, ()) if find_spec(name) is None]
    if missing:
        raise DispatcherError(
            f"the format of the lake needs packages that are not installed: lake_format={lake_format} "
            f"missing={','.join(missing)}",
            f'Install them with: pip install "reput[{lake_format}]".',
        )


def find_java() -> Path:
    """Return the Java that Spark will use: from ``JAVA_HOME``, else from the ``PATH``.

    Raises:
        DispatcherError: no Java was found, or it is too old for Spark.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=os.path.join(home, "bin") if home else None)
    if found is None:
        raise DispatcherError(
            f"Spark needs Java, which is missing: JAVA_HOME={home or ''} needed={JAVA_VERSION_MIN}",
            f"Install a JDK or JRE of version {JAVA_VERSION_MIN} or later, or set spark.remote to a Spark elsewhere.",
        )
    told = subprocess.run([found, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', told)
    if version is None or int(version[1]) < JAVA_VERSION_MIN:
        raise DispatcherError(
            f"Spark needs a later Java: java={found} version={version[1] if version else told.strip()!r} "
            f"needed={JAVA_VERSION_MIN}",
            f"Install version {JAVA_VERSION_MIN} or later and set JAVA_HOME to it.",
        )
    return Path(found)
