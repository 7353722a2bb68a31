"""From the configuration to a transform: where it is found, what of it counts, and which verdicts are on it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.daemon_process import stream_config, write_images
from support.served_folder import serve
from support.transform_programs import Write

from streamd.config.load import load_config
from streamd.core.bad_samples import BadSample
from streamd.daemon.streams.catalog import find_unlisted_streams, write_sample_manifests
from streamd.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_images(tmp_path / "data", {"cat": 5, "dog": 6}, size=(8, 8))


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def test_a_transform_is_found_beside_the_configuration_and_follows_its_source(
    folder: Path, state: Path, program: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = program("augment", "").parent
    monkeypatch.chdir(beside)
    first = serve(folder, state, transform="augment:f")
    assert first.transform is not None
    assert (first.transform.function, first.transform.folder) == ("f", str(beside))
    program("augment", "# edited")
    second = serve(folder, state, transform="augment:f")
    assert second.transform not in {first.transform, None}
    assert (second.spec, second.manifest_path) == (first.spec, first.manifest_path)


def test_a_transform_that_is_nowhere_is_told_before_anything_is_listed(folder: Path, state: Path) -> None:
    config = load_config({"streams": {"train": stream_config(folder, transform="nowhere_to_be_found:f")}})
    with pytest.raises(ConfigError, match=r"^streams\.train\.transform: there is no module 'nowhere_to_be_found'"):
        write_sample_manifests(config, state, lambda *_: pytest.fail("it lists"))
    assert find_unlisted_streams(config, state) == {"train"}


def test_verdicts_are_on_one_version_of_a_transform_and_a_rescan_forgives_all(
    folder: Path, state: Path, program: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(program("augment", "").parent)
    plain, changed = serve(folder, state), serve(folder, state, transform="augment:f")
    plain.quarantine.append_new_bad_samples([BadSample(0, "bad")])
    changed.quarantine.append_new_bad_samples([BadSample(1, "transform raised")])
    assert serve(folder, state).quarantine.reasons == {0: "bad"}
    assert serve(folder, state, transform="augment:f").quarantine.reasons == {1: "transform raised"}
    assert serve(folder, state, transform="augment:g").quarantine.reasons == {}
    serve(folder, state, rescan=True)
    assert serve(folder, state, transform="augment:f").quarantine.reasons == {}
