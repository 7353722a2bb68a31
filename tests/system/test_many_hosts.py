"""Four daemons in four namespaces serve one job, which changes its world and loses a host: it is still one epoch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from support.daemon_process import write_images
from support.many_hosts import VirtualHost

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

SAMPLES: Final = 400
BATCHES: Final = SAMPLES // 2


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[VirtualHost]]:
    """Hosts with copies of one data set; all have the first one's list, and expect its identities."""
    data = write_images(tmp_path / "data", {"cat": SAMPLES // 2, "dog": SAMPLES // 2}, size=(8, 8))
    hosts = [VirtualHost(tmp_path / name, data, number) for number, name in enumerate(("a", "b", "c", "d"))]
    try:
        share_list(hosts, tmp_path / "lists")
        yield hosts
    finally:
        for host in hosts:
            host.close()


def share_list(hosts: list[VirtualHost], lists: Path) -> None:
    first, *others = hosts
    exported = first.run("manifest", "export", str(lists), "--config", str(first.config))
    assert exported.returncode == 0, exported.stderr
    found = json.loads(first.run("check", "--config", str(first.config), "--json").stdout)["streams"]["train"]
    for host in hosts:
        host.write_config({"train": {"order": found["order_id"], "pixels": found["pixel_id"]}})
    for host in others:
        imported = host.run("manifest", "import", str(lists), "--config", str(host.config))
        assert (imported.returncode, imported.stdout) == (0, exported.stdout), imported.stderr


def run_leg(hosts: list[VirtualHost], world: int, receipts: Path, **leg: Any) -> list[dict[str, Any]]:
    """All ranks of a leg, the same number on each host; `dies_after` is for the last host."""
    each = world // len(hosts)
    dies_after = leg.pop("dies_after", None)
    for number, host in enumerate(hosts):
        ranks = list(range(each * number, each * (number + 1)))
        last = number == len(hosts) - 1
        host.begin_leg(ranks, world, receipts=receipts, dies_after=dies_after if last else None, **leg)
    return [rank for host in hosts for rank in host.end_leg()]


def ids_of(found: list[dict[str, Any]], steps: int | None = None) -> list[int]:
    return [sample for rank in found for batch in rank["taken"][:steps] for sample in batch]


def test_a_job_that_loses_a_host_and_gets_it_back_is_one_epoch(hosts: list[VirtualHost], tmp_path: Path) -> None:
    receipts = tmp_path / "receipts"
    receipts.mkdir()
    for host in hosts:
        host.start()
    saved = run_leg(hosts, 8, receipts, steps=5)
    token = saved[2]["token"]
    lost = run_leg(hosts, 8, receipts, steps=4, token=token, dies_after=2)  # taken in vain
    assert {rank["rank"] for rank in lost} == set(range(6))

    six = run_leg(hosts[:3], 6, receipts, steps=6, token=token)
    hosts[3].restart()
    rest = run_leg(hosts, 8, receipts, token=six[4]["token"])

    files = sorted(map(str, receipts.glob("receipts-*.jsonl")))
    said = hosts[0].run("verify", *files)
    assert said.returncode == 0, said.stdout + said.stderr
    lines = said.stdout.splitlines()
    assert lines[0].startswith(f"train epoch 0: one epoch, {BATCHES} batches")
    assert "  dropped by the last world: 4 batches: 196 to 199" in lines
    assert [line.partition(";")[0].strip() for line in lines if "by token" in line] == [
        "by token: batches 0 to 39, world 8", "by token: batches 40 to 75, world 6",
    ]  # fmt: skip
    taken = ids_of(saved) + ids_of(six) + ids_of(rest)
    assert len(taken) == len(set(taken)) == SAMPLES - 4 * 2

    without_one = hosts[0].run("verify", *files[1:])
    assert without_one.returncode == 1
    assert "missing: 15 batches" in without_one.stdout


@pytest.mark.parametrize(
    ("change", "key"),
    [({"image": {"size": [9, 9]}}, "expect.train.pixels"), ({"shuffle": {"seed": 1}}, "expect.train.order")],
)
def test_a_host_whose_batches_would_differ_is_refused_at_its_start(
    hosts: list[VirtualHost], change: dict[str, Any], key: str
) -> None:
    host = hosts[3]
    expect = json.loads(host.config.read_text())["expect"]
    host.write_config(expect, **change)
    refused = host.run("serve", "--config", str(host.config))
    assert refused.returncode == 2
    assert key in refused.stderr
    assert expect["train"][key.rpartition(".")[2]] in refused.stderr
    checked = json.loads(host.run("check", "--config", str(host.config), "--json").stdout)
    assert not checked["ok"]
    assert any(key in trouble for trouble in checked["troubles"])
