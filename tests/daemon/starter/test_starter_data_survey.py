"""A survey in the words of a configuration."""

from __future__ import annotations

from streamd.daemon.starter.data_survey import build_refusal, split_train_source


def test_both_parts_of_a_split_have_the_keys_of_the_source() -> None:
    assert split_train_source({"path": "/d", "image": "file"}) == {
        "train": {"path": "/d", "image": "file", "part": "train"},
        "validation": {"path": "/d", "image": "file", "part": "validation"},
    }


def test_a_refusal_says_what_lies_there_what_is_served_and_what_to_do() -> None:
    assert str(build_refusal("'x' is a boat", "name a folder")) == (
        "PATH: 'x' is a boat; a configuration is made from a folder of images, a table (.csv, .tsv, .parquet), or a "
        "folder or file of tars: name a folder"
    )
