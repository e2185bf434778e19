"""The ready-made files in deploy/: they parse, name files and verbs that exist, and run one writer per store."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from reput.cli.application import GROUPS, VERBS, application
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


def test_the_image_has_every_folder_that_compose_lets_it_write():
    """A new volume gets the owner of the folder that it hides; without one in the image it is root's, and read-only."""
    made = re.search(r"install -d -o reput .*-m 0700 (.+)$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)
    assert made is not None
    services = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"].values()
    volumes = [volume.split(":") for one in services if one["image"] == "reput" for volume in one["volumes"]]
    assert {path for _, path, *mode in volumes if not mode} == {*made[1].split()}


def words_of_commands() -> list[tuple[Path, list[str]]]:
    """Return the words behind `reput` of each command of a deploy file, with those that compose and a pod add."""
    compose = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]
    image = re.search(r'ENTRYPOINT \["reput", (.+)\]', (DEPLOY / "Containerfile").read_text())
    assert image is not None
    entry = yaml.safe_load(f"[{image[1]}]")
    found = [(DEPLOY / "Containerfile", entry)]
    for service in compose.values():
        if service["image"] == "reput":
            given = service["entrypoint"][1:] if "entrypoint" in service else entry
            found.append((DEPLOY / "compose", [*given, *service.get("command", ())]))
    for container in pod()["containers"]:
        given = container["command"][1:] if "command" in container else entry
        found.append((DEPLOY / "kubernetes", [*given, *container.get("args", ())]))
    for unit in DEPLOY.glob("*.service"):
        line = re.search(r"^ExecStart=\S+/reput (.+)$", unit.read_text(), re.MULTILINE)
        assert line is not None
        found.append((unit, line[1].split()))
    return found


def pod() -> dict[str, Any]:
    """Return the pod of the StatefulSet."""
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / "reput.yaml").read_text())
    (stateful,) = [document for document in documents if document["kind"] == "StatefulSet"]
    return stateful["spec"]["template"]["spec"]


def test_commands_have_options_that_exist_and_name_their_files():
    """A unit that does not start is found here: each verb takes its options, and none is given without a value."""
    commands = words_of_commands()
    assert len(commands) == 7
    for path, (verb, *words) in commands:
        command = typer.main.get_command(application([verb])).commands[verb]
        context = command.make_context(verb, words, resilient_parsing=True)
        unknown = [word for word in words if word.startswith("--") and word not in options_of(command)]
        assert unknown == [], path
        assert not context.args, path


def options_of(command: typer.core.TyperCommand) -> set[str]:
    """Return the options of a verb."""
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def test_prometheus_scrapes_what_the_commands_serve():
    """Each target is a `--metrics` of a command beside it: an alert on a job that nobody serves never fires."""
    served: dict[str, set[str]] = {"compose": set(), "prometheus": set()}
    for path, words in words_of_commands():
        if "--metrics" in words:
            port = words[words.index("--metrics") + 1].rpartition(":")[2]
            served["compose" if path.name == "compose" else "prometheus"].add(port)
    for name, ports in served.items():
        config = yaml.safe_load((DEPLOY / name / "prometheus.yml").read_text())
        jobs = {job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]}
        assert {target.rpartition(":")[2] for targets in jobs.values() for target in targets} == ports
        rules = (DEPLOY / "prometheus" / "reput-alerts.yml").read_text()
        assert set(re.findall(r'job="([^"]+)"', rules)) == set(jobs)


def test_no_probe_restarts_a_broker_for_what_a_person_must_decide():
    """`reput status` says no for damage and for a dispatcher that is FATAL: probes ask whether the broker answers."""
    (broker, _) = pod()["containers"]
    ports = {port["name"]: str(port["containerPort"]) for port in broker["ports"]}
    for name in ("startupProbe", "livenessProbe"):
        assert broker[name]["httpGet"] == {"path": "/metrics", "port": "metrics"}
    assert broker["args"][broker["args"].index("--metrics") + 1].rpartition(":")[2] == ports["metrics"]
    assert "service_healthy" not in (DEPLOY / "compose" / "compose.yaml").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.30", "1.36"])
def test_the_manifests_are_what_kubernetes_takes(version):
    """By the schemas of its own interface, with no field that it does not know."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="the extra deploy is not installed")
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "reput.yaml").read_text()))
    assert [document["kind"] for document in documents] == ["Service", "ConfigMap", "StatefulSet"]
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)
    documents[2]["spec"]["replica"] = 1
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        kubernetes_validate.validate(documents[2], version, strict=True)


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
