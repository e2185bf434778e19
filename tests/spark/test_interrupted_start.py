"""An export that is ended while its Spark starts leaves no process and no file behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import REPUT
from delivering import wait_until
from process_tree import descendants
from written_log import WrittenLog

pytestmark = [pytest.mark.spark, pytest.mark.processes]

# Like a JVM that could not write its port into the folder that PySpark has removed: it stays.
NEVER_READY = """\
#!/bin/sh
exec {python} -c 'import signal; print("waits", flush=True); signal.pause()' "$@"
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_no_jvm_outlives_an_export_that_is_ended_while_it_starts(tmp_path: Path, number: signal.Signals):
    """By a service manager or by Ctrl-C."""
    log = WrittenLog(tmp_path / "store")
    log.append()
    log.save()
    scratch, submit = tmp_path / "scratch", tmp_path / "spark" / "bin" / "spark-submit"
    scratch.mkdir()
    submit.parent.mkdir(parents=True)
    submit.write_text(NEVER_READY.format(python=sys.executable))
    submit.chmod(0o755)
    process = subprocess.Popen(
        [REPUT, "export", log.store, tmp_path / "lake", "--follow"],
        env=os.environ | {"TMPDIR": str(scratch), "SPARK_HOME": str(tmp_path / "spark")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: any(path.read_text() == "waits\n" for path in scratch.glob("*/spark.log")))
        started = [pid for pid, command in descendants(process.pid).items() if "signal.pause" in command]
        process.send_signal(number)
        process.wait(120)
        assert len(started) == 1
        assert not Path(f"/proc/{started[0]}").exists()
        assert list(scratch.iterdir()) == []
    finally:
        for pid in descendants(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()
