"""The ready-made files in deploy/: they parse, name files and verbs that exist, and run one writer per store."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from reput.cli.application import GROUPS, VERBS
from source_tree import ROOT

DEPLOY = ROOT / "deploy"
YAML = sorted(path for pattern in ("*.yaml", "*.yml") for path in DEPLOY.rglob(pattern))
# Made with the metrics' board and rules.
OTHERS = ("grafana", "prometheus")


@pytest.mark.parametrize("path", YAML, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_a_yaml_file_parses(path):
    """Every document of it is a mapping."""
    assert all(isinstance(document, dict) for document in yaml.safe_load_all(path.read_text()))


def test_commands_name_verbs_that_exist():
    """Each `reput VERB` in a deploy file is a verb."""
    for path in DEPLOY.rglob("*"):
        if path.is_file() and path.suffix != ".json":
            text = path.read_text()
            for verb in re.findall(r'"reput", "(\w+)"|bin/reput (\w+)', text):
                assert "".join(verb) in (*VERBS, *GROUPS), path


def test_the_compose_file_mounts_files_that_exist():
    """What it mounts from the repository is there; the board and the rules come with the metrics."""
    compose = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
    for service in compose["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            if source.startswith(".") and not {*Path(source).parts} & {*OTHERS}:
                assert (DEPLOY / "compose" / source).exists(), source


def test_there_is_one_writer_of_a_store():
    """The StatefulSet has one replica, and its volume belongs to one pod at a time."""
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "reput.yaml").read_text()))
    (stateful,) = [document for document in documents if document["kind"] == "StatefulSet"]
    assert stateful["spec"]["replicas"] == 1
    (claim,) = stateful["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    for container in stateful["spec"]["template"]["spec"]["containers"]:
        assert container["securityContext"]["readOnlyRootFilesystem"] is True


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("name", ["reput.service", "reput-backup.service"])
def test_a_unit_is_what_systemd_understands(name, tmp_path):
    """systemd finds no unknown key in a unit; the program itself need not be installed here."""
    unit = (DEPLOY / name).read_text().replace("/usr/local/lib/reput/bin/reput", "/bin/true")
    (tmp_path / name).write_text(unit)
    checked = subprocess.run(["systemd-analyze", "verify", tmp_path / name], capture_output=True, text=True)
    ours = [line for line in checked.stderr.splitlines() if name in line and "reput.service" not in line.split(":")[-1]]
    assert not ours, checked.stderr
