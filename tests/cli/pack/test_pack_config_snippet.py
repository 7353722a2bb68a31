"""The configuration that `streamd pack` prints at its end."""

from __future__ import annotations

import pytest
from ruamel.yaml import YAML
from support.sample_specs import some_spec

from streamd.cli.pack.label_cells import (
    build_decoded_pack_settings,
    build_encoded_image_settings,
    collect_kept_settings,
    format_yaml,
)
from streamd.config.load import load_config
from streamd.core.spec import ImageSpec


def test_yaml_reads_back_to_the_same_keys_with_leaves_on_one_line() -> None:
    keys = {"streams": {"no: 1": {"source": {"path": "/a b/" + 200 * "c" + ": d"}, "classes": ["yes", 1, "é"]}}}
    text = format_yaml(keys)
    assert YAML(typ="safe").load(text) == keys
    assert len(text.splitlines()) == 4


@pytest.mark.parametrize(
    ("image", "decoded", "encoded"),
    [
        (ImageSpec(4, 6, 3), {"size": "stored"}, {"size": [4, 6]}),
        (ImageSpec(4, 6, 1), {"size": "stored", "mode": "L"}, {"size": [4, 6], "mode": "L"}),
        (
            ImageSpec(4, 6, 3, "crop", exact=True),
            {"size": "stored"},
            {"size": [4, 6], "resize": "crop", "exact": True},
        ),
        (
            ImageSpec(4, 6, 3, "random_crop", scale=(0.5, 1.0), ratio=(1.0, 2.0)),
            {"size": "stored"},
            {"size": [4, 6], "resize": "random_crop", "scale": [0.5, 1.0], "ratio": [1.0, 2.0]},
        ),
    ],
)
def test_images_keep_their_settings(image: ImageSpec, decoded: object, encoded: object) -> None:
    spec = some_spec(images={"image": image}, normalize="none")
    assert build_decoded_pack_settings({}, spec)["image"] == decoded
    assert build_encoded_image_settings(spec, None) == {"image": encoded}


def test_settings_that_a_pack_does_not_change_are_kept() -> None:
    written = {
        "batch_size": 100,
        "drop_remainder": "pad",
        "shuffle": {"kind": "full", "seed": 5},
        "normalize": {"mean": [120.0, 110.0, 100.0], "std": [60.0, 60.0, 60.0]},
        "transform": "aug:f",
        "bad_samples": {"policy": "mask"},
    }
    source = {"kind": "folder", "path": "/data", "part": "train"}
    image = {"size": [8, 8], "resize": "crop"}
    config = load_config(
        {
            "streams": {
                "train": {"source": source, "image": image, "cache": {"path": "cache"}, **written},
                "plain": {"source": source, "image": image},
                "like": {"like": "train", "normalize": "imagenet", "shuffle": "none"},
            }
        }
    )
    assert collect_kept_settings(config.streams["train"]) == written
    assert collect_kept_settings(config.streams["plain"]) == {}
    assert collect_kept_settings(config.streams["like"]) == {
        **written,
        "normalize": "imagenet",
        "shuffle": {"kind": "none"},
    }
    again = {**written, "source": {"kind": "npy", "path": "/packs/train"}}
    assert collect_kept_settings(load_config({"streams": {"train": again}}).streams["train"]) == written
