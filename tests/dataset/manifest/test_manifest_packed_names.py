"""The keys under which a pack keeps the names of its samples."""

from __future__ import annotations

from streamd.dataset.manifest.columns import choose_name_key, is_packed_name_key


def test_the_key_of_the_names_differs_from_all_labels_and_is_recognized() -> None:
    labels = {"name", "name_", "names"}
    key = choose_name_key(labels)
    assert key == "name__"
    assert choose_name_key({"label"}) == "name"
    assert is_packed_name_key(key)
    assert not any(map(is_packed_name_key, ("names", "name1", "file_name", "")))
