"""The programs of examples/hosts train on two hosts, each with its own daemon, and their receipts add up."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from loader_process import python_of
from ruamel.yaml import YAML
from support.daemon_process import write_images
from support.example_daemons import EXAMPLES
from support.many_hosts import LinkedNetworks, VirtualHost

from streamd.cli.main import app
from streamd.config.load import load_config
from streamd.config.rules import list_unserved_settings

FOLDER: Final = EXAMPLES / "hosts"
ROOT: Final = EXAMPLES.parent
LIMIT_S: Final = 180.0
FIRST, _ = LinkedNetworks.ADDRESSES


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[VirtualHost]]:
    """Two hosts on one network, with a daemon each that serves a copy of the same data."""
    data = write_images(tmp_path / "data", {"birch": 50, "oak": 50}, size=(40, 40))
    written = YAML(typ="safe").load(FOLDER / "config.yaml")["streams"]["train"]
    changes = {name: value for name, value in written.items() if name != "source"}
    with LinkedNetworks() as networks:
        hosts = [VirtualHost(tmp_path / f"{each}", data, each, networks.prefix(each)) for each in range(2)]
        try:
            for host in hosts:
                host.write_config(**changes)
                host.start()
            yield hosts
        finally:
            for host in hosts:
                host.close()


def run_everywhere(hosts: Sequence[VirtualHost], commands: Sequence[Sequence[object]]) -> str:
    """Runs one command on each host at the same time, as a user would; what all of them printed."""
    running = [
        subprocess.Popen(
            [*host.prefix, *map(str, command)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                **os.environ,
                "STREAMD_ENDPOINT": host.endpoint,
                "PYTHONPATH": str(ROOT),
                "GLOO_SOCKET_IFNAME": "eth0",
                "OMP_NUM_THREADS": "1",
                "JAX_PLATFORMS": "cpu",
            },
        )
        for host, command in zip(hosts, commands, strict=True)
    ]
    try:
        said = [process.communicate(timeout=LIMIT_S)[0] for process in running]
    finally:
        for process in running:
            process.kill()
            process.communicate()
    assert [process.returncode for process in running] == [0, 0], "\n".join(said)
    return "\n".join(said)


def verify(hosts: Sequence[VirtualHost], run: Path) -> list[str]:
    done = hosts[0].run("verify", *map(str, sorted(run.glob("receipts-*.jsonl"))))
    assert done.returncode == 0, done.stdout
    return [line for line in done.stdout.splitlines() if line.startswith("train epoch")]


@pytest.mark.train
@pytest.mark.timeout(240)  # it may have to install torch or JAX
def test_torchrun_trains_on_two_hosts_with_a_daemon_each(hosts: list[VirtualHost], tmp_path: Path) -> None:
    def command(number: int) -> list[object]:
        of_job = ["--nnodes", 2, "--node-rank", number, "--nproc-per-node", 2]
        place = ["--master-addr", FIRST, "--master-port", 29500]
        program = [FOLDER / "train_torch.py", tmp_path]
        return [python_of("keras_torch"), "-m", "torch.distributed.run", *of_job, *place, *program]

    said = run_everywhere(hosts, [command(0), command(1)])

    assert sorted(re.findall(r"rank (\d) of 4, epoch 1: loss", said)) == ["0", "1", "2", "3"]
    assert verify(hosts, tmp_path) == [
        f"train epoch {epoch}: one epoch, 12 batches in 4 receipts" for epoch in range(2)
    ]


@pytest.mark.train
@pytest.mark.timeout(240)  # it may have to install torch or JAX
def test_jax_trains_on_two_hosts_with_a_daemon_each(hosts: list[VirtualHost], tmp_path: Path) -> None:
    python = python_of("keras_jax")
    said = run_everywhere(
        hosts, [[python, FOLDER / "train_jax.py", f"{FIRST}:29500", 2, number, tmp_path] for number in range(2)]
    )

    losses = re.findall(r"rank \d of 2, epoch 1: loss (\S+)", said)
    assert len(losses) == 2
    assert len(set(losses)) == 1  # every process has the mean over both hosts
    assert verify(hosts, tmp_path) == [
        f"train epoch {epoch}: one epoch, 12 batches in 2 receipts" for epoch in range(2)
    ]


# --- the Kubernetes job, which only a cluster can run


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    """The documents of job.yaml, by their kind."""
    return {each["kind"]: each for each in YAML(typ="safe").load_all(FOLDER / "job.yaml")}


def test_the_configuration_of_the_job_is_one_that_the_daemon_serves(job: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(job["ConfigMap"]["data"]["config.yaml"])
    config = load_config(tmp_path / "config.yaml")
    assert list_unserved_settings(config) == []
    assert config.expect is not None


def test_each_pod_has_a_daemon_as_a_sidecar_that_shares_socket_and_processes(job: dict[str, Any]) -> None:
    spec = job["Job"]["spec"]
    pod = spec["template"]["spec"]
    (daemon,), (trainer,) = pod["initContainers"], pod["containers"]
    assert (spec["completionMode"], spec["completions"]) == ("Indexed", spec["parallelism"])
    assert daemon["restartPolicy"] == "Always"
    assert pod["shareProcessNamespace"]
    assert pod["securityContext"]["runAsUser"]
    shared = {each["name"]: each["mountPath"] for each in trainer["volumeMounts"]}
    here = {each["name"]: each["mountPath"] for each in daemon["volumeMounts"]}
    assert shared["socket"] == here["socket"]
    assert {*shared, *here} == {each["name"] for each in pod["volumes"]}
    listen = YAML(typ="safe").load(job["ConfigMap"]["data"]["config.yaml"])["listen"]
    assert {each["name"]: each["value"] for each in trainer["env"]}["STREAMD_ENDPOINT"] == listen


def test_the_commands_of_the_job_exist_and_agree_on_the_number_of_hosts(job: dict[str, Any]) -> None:
    spec = job["Job"]["spec"]
    pod = spec["template"]["spec"]
    (daemon,), (trainer,) = pod["initContainers"], pod["containers"]
    commands = {command.callback.__name__ for command in app.registered_commands if command.callback}
    assert {daemon["command"][1], daemon["startupProbe"]["exec"]["command"][1]} <= commands
    words = shlex.split(trainer["command"][-1])
    assert words[words.index("--nnodes") + 1] == str(spec["completions"])
    assert words[words.index("--master-addr") + 1] == f"{job['Job']['metadata']['name']}-0.{pod['subdomain']}"
    assert job["Service"]["metadata"]["name"] == pod["subdomain"]
    assert (FOLDER / words[-2]).exists()
