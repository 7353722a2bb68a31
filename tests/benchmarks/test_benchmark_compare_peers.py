"""The table of loaders, and the cells of a round."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import compare_peers as peers
import pytest

from streamd.config.load import load_config

HERE = Path(peers.__file__).parent
BY_NAME = {peer.name: peer for peer in peers.PEERS}


@pytest.mark.parametrize("peer", peers.PEERS, ids=lambda peer: str(peer.name))
def test_a_loader_has_its_file_and_its_pinned_requirements(peer: peers.Peer) -> None:
    assert (HERE / "peers" / f"{peer.module}.py").exists()
    if peer.environment is not None:
        lines = (HERE / "peers" / "requirements" / f"{peer.environment}.txt").read_text().splitlines()
        packages = [line for line in lines if line and not line.startswith(("#", " "))]
        assert packages
        assert [line for line in packages if "==" not in line or "://" in line] == []


def test_every_cell_of_a_round_is_measured_once_and_each_round_begins_elsewhere() -> None:
    cells = peers.cells(list(peers.SETS), peers.PEERS, [1, 2, 4, 8, 16], peers.SWEEP)
    rounds = [peers.rotated(cells, number, 3) for number in range(3)]

    assert max(Counter(cell.key for cell in cells).values()) == 1
    assert all(Counter(round_) == Counter(cells) for round_ in rounds)
    assert len({round_[0] for round_ in rounds}) == 3


def test_more_than_four_trainers_and_other_worker_counts_are_for_those_that_a_chart_compares() -> None:
    cells = peers.cells(["s"], peers.PEERS, [1, 4, 8], [1])

    assert {cell.peer for cell in cells if cell.trainers == 8} == {"streamd"}
    assert {cell.key for cell in cells if cell.workers} == {
        "s/limit/1/workers=1",
        "s/streamd/1/workers=1",
        "s/torch_simplejpeg/1/workers=1",
    }
    assert {"s/tf_service/4", "s/tensor_socket/4", "s/limit/1"} <= {cell.key for cell in cells}


@pytest.mark.parametrize(
    ("name", "of", "kind"),
    [("streamd", "l", "folder"), ("streamd", "decoded", "npy"), ("streamd_cache", "decoded", "folder")],
)
def test_streamd_reads_each_set_as_a_user_would_configure_it(name: str, of: str, kind: str, tmp_path: Path) -> None:
    config = load_config({"streams": {"train": peers.stream(BY_NAME[name], of, tmp_path)}})

    assert config.streams["train"].source.kind == kind
    assert (config.streams["train"].cache is not None) == (name == "streamd_cache")
