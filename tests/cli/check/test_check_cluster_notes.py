"""What check says of a cluster: whether it pays, and whether it is open."""

from __future__ import annotations

from pathlib import Path

from streamd.cli.check.run import compute_decoding_share, list_cluster_notes
from streamd.config.load import load_config
from streamd.config.schema import Config

SLOT_BYTES = 1_576_960  # 32 rows of 128 x 128


def config(engine: object) -> Config:
    stream = {"source": {"kind": "folder", "path": str(Path("/data"))}, "image": {"size": [128, 128]}}
    return load_config({"engine": engine, "streams": {"train": stream}})


def test_nothing_is_said_where_this_host_decodes() -> None:
    assert list(list_cluster_notes(config("local"), {"train": (20.0, SLOT_BYTES)}, {})) == []


def test_an_open_cluster_is_warned_of_and_one_that_asks_for_a_token_is_not() -> None:
    (warning,) = list_cluster_notes(config("ray"), {}, {})
    assert "RAY_AUTH_MODE is not set here" in warning
    assert "set RAY_AUTH_MODE=token for the cluster and for streamd" in warning
    assert list(list_cluster_notes(config("ray"), {}, {"RAY_AUTH_MODE": "token"})) == []
    own = config({"kind": "ray", "address": "local"})
    assert list(list_cluster_notes(own, {}, {})) == []
    (warning,) = list_cluster_notes(own, {}, {"RAY_AUTH_MODE": "disabled"})
    assert "RAY_AUTH_MODE is disabled here" in warning


def test_a_cluster_pays_where_decoding_takes_longer_than_sending() -> None:
    token = {"RAY_AUTH_MODE": "token"}
    (large,) = list_cluster_notes(config("ray"), {"train": (25.0, SLOT_BYTES)}, token)
    assert large.endswith("81% of its time: a cluster pays")
    (small,) = list_cluster_notes(config("ray"), {"train": (3.5, SLOT_BYTES)}, token)
    assert "use engine: local" in small
    assert 0.6 < compute_decoding_share(10.0, SLOT_BYTES) < 0.7
    assert compute_decoding_share(0.0, SLOT_BYTES) == 0.0
