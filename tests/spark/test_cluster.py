"""A cluster of separate processes: a master, a worker, and executors that access store, lake and target by path."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import reput.table
from reput.process.owner.offline_rebuild import rebuild
from reput.settings import Settings
from reput_plugins.spark_export.spark_session import JVM_OPTIONS
from spark.lakes import offsets_in
from written_log import START_MS, WrittenLog

pytest.importorskip("pandas")
pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.processes]

SECONDS_MAX = 120
VIEWS = ("consume_queue", "index")
# The work of a driver, in a separate process, because this one may already have a Spark.
DRIVER = """
import json, sys
from pathlib import Path
import pyspark_reput
import reput.table
from reput.plugin_jobs import find_engine, rebuild_with
from reput.settings import Settings
from reput_plugins.spark_export import export
from reput_plugins.spark_export.spark_session import JVM_OPTIONS, spark_session

master, store, root = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
settings = {"spark.master": master, "spark.executor.memory": "512m", "spark.sql.shuffle.partitions": "2"}
settings["spark.executor.extraJavaOptions"] = JVM_OPTIONS
with spark_session(settings, "test") as session:
    found = {"master": session.sparkContext.master, "records": export(store, root / "lake").records}
    engine = find_engine("spark")
    found["ok"] = engine.check_store(store, Settings(), lambda done: None, split_bytes=100_000).ok
    views = ("consume_queue", "index")
    rows = rebuild_with(engine)(store, views, root / "rebuilt", Settings(), on_progress=lambda *done: None)
    found["rebuilt"] = [row.records for row in rows]
    frame = session.read.format("reput").load(str(store)).selectExpr("'again' as topic", "body")
    frame.write.format("reput").mode("append").save(str(root / "written"))
    found["written"] = reput.table.read(root / "written").num_rows
    apart = session.newSession()
    pyspark_reput.register(apart)
    chosen = apart.read.format("reput").schema("body binary, queueId int").load(str(store)).where("queueId = 3")
    plan = chosen._jdf.queryExecution().executedPlan().toString()
    found["filters"] = sum("Filter" in line and "= 3" in line for line in plan.splitlines())
    found["chosen"] = chosen.count()
print(json.dumps(found))
"""


# The work of a Spark Connect client, in a separate process without a JVM: export, check, following export, and a stream
# of its rows into another store.
CLIENT = """
import json, sys
from pathlib import Path
from reput.plugin_jobs import find_engine
from reput.settings import Settings
from reput_plugins.spark_export import export, follow
from reput_plugins.spark_export.spark_session import spark_session

remote, store, root = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
with spark_session({"spark.remote": remote}, "test") as session:
    found = {"records": export(store, root / "lake").records}
    found["ok"] = find_engine("spark").check_store(store, Settings(), lambda done: None, split_bytes=100_000).ok
    following = follow(store, root / "followed", interval_ms=50)
    found["followed"] = next(following).records
    following.close()
    rows = session.readStream.format("reput").option("startingOffsets", "earliest").load(str(store))
    writer = rows.selectExpr("'again' as topic", "body").writeStream.format("reput").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", (root / "checkpoint").as_uri())
    writer.start(str(root / "written")).awaitTermination()
print(json.dumps(found))
"""


def started(log: Path, words: str, *command: str) -> subprocess.Popen[bytes]:
    """Start one of Spark's processes and return it once its log has *words*."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    home = next(iter(spec.submodule_search_locations))
    ours = {"SPARK_HOME": home, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "512m"}
    # For the process, and for the JVM that builds its command line.
    options = {"SPARK_DAEMON_JAVA_OPTS": JVM_OPTIONS, "SPARK_LAUNCHER_OPTS": JVM_OPTIONS}
    variables = {**os.environ, **ours, **options, "PYSPARK_PYTHON": sys.executable}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [os.path.join(home, "bin", command[0]), *command[1:]], env=variables, stdout=output, stderr=output
        )
    end = time.monotonic() + SECONDS_MAX
    while words not in log.read_text():
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            process.wait()
            raise AssertionError(log.read_text()[-6000:])
        time.sleep(0.1)
    return process


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """Return the address of a master with one worker of two cores; the system assigns their ports."""
    at_home = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    processes: list[subprocess.Popen[bytes]] = []
    package = "org.apache.spark.deploy"
    try:
        log = tmp_path / "master.log"
        processes.append(started(log, "elected leader", "spark-class", f"{package}.master.Master", *at_home))
        found = re.search(r"Starting Spark master at (spark://\S+)", log.read_text())
        assert found is not None, log.read_text()
        address = found[1]
        resources = ("--cores", "2", "--memory", "1g", "--work-dir", str(tmp_path / "work"))
        log = tmp_path / "worker.log"
        words = "Successfully registered with master"
        processes.append(started(log, words, "spark-class", f"{package}.worker.Worker", *at_home, *resources, address))
        yield address
    finally:
        for process in reversed(processes):
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """End one of Spark's processes and wait until it is gone."""
    process.terminate()
    try:
        process.wait(SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.fixture
def connect_server(spark: Any) -> Iterator[str]:
    """Return the address of Spark Connect, served by the Spark that all tests share."""
    pytest.importorskip("grpc_status")
    package = spark._jvm.org.apache.spark.sql.connect.service
    # The single instance of a Scala object.
    service = getattr(getattr(package, "SparkConnectService$"), "MODULE$")
    service.start(spark._jsc.sc())
    try:
        yield f"sc://127.0.0.1:{service.localPort()}"
    finally:
        nothing = spark._jvm.scala.Option.empty()
        service.stop(nothing, nothing)


def files_below(target: Path) -> dict[str, bytes]:
    """Return the built files; index files without their names, which are times."""
    found = {str(path.relative_to(target)): path.read_bytes() for path in sorted(target.glob("consumequeue/*/*/*"))}
    found |= {f"index/{number}": path.read_bytes() for number, path in enumerate(sorted(target.glob("index/*")))}
    return found


@pytest.mark.usefixtures("spark_classes")
def test_executors_of_a_cluster_do_the_work(master: str, tmp_path: Path):
    """Export, check, rebuild, writing back and pushed-down filters, with only paths shared."""
    log = WrittenLog(tmp_path / "store", segment_size=1 << 16)
    for number in range(2000):
        log.append(b"%d" % number * 20, queue_id=number % 7, store_timestamp=START_MS + number)
    log.save()
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, master, str(log.store), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=4 * SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {
        "master": master,
        "records": 2000,
        "ok": True,
        "rebuilt": [2000, 2000],
        "written": 2000,
        "filters": 0,
        "chosen": len(range(3, 2000, 7)),
    }
    assert offsets_in(tmp_path / "lake") == log.offsets
    list(rebuild(log.store, VIEWS, tmp_path / "here", Settings()))
    assert files_below(tmp_path / "rebuilt") == files_below(tmp_path / "here")


def test_spark_connect_does_the_work(connect_server: str, tmp_path: Path):
    """Export, check and streams, for a process without a JVM."""
    log = WrittenLog(tmp_path / "store", segment_size=1 << 16)
    for number in range(500):
        log.append(b"%d" % number * 20, store_timestamp=START_MS + number)
    log.save()
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, connect_server, str(log.store), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=4 * SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"records": 500, "ok": True, "followed": 500}
    for lake in ("lake", "followed"):
        assert offsets_in(tmp_path / lake) == log.offsets
    bodies = [reput.table.read(store)["body"].to_pylist() for store in (log.store, tmp_path / "written")]
    assert bodies[0] == bodies[1]
