"""What stands beside the Trainer of transformers and needs no Trainer: the choice of a checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from streamd.errors import MissingExtraError
from streamd.frameworks import transformers
from streamd.frameworks.transformers import find_checkpoint


def write_checkpoint(folder: Path, step: int, state: str | None) -> None:
    (folder / f"checkpoint-{step}").mkdir(parents=True)
    if state is not None:
        (folder / f"checkpoint-{step}" / "trainer_state.json").write_text(state)


def test_the_newest_checkpoint_that_was_written_to_its_end_is_found(tmp_path: Path) -> None:
    for step, state in {8: "{}", 9: "{}", 10: '{"epoch": 1', 11: "", 12: None}.items():
        write_checkpoint(tmp_path, step, state)
    write_checkpoint(tmp_path / "checkpoint-13.old", 1, "{}")
    (tmp_path / "checkpoint-14").touch()
    assert find_checkpoint(tmp_path) == str(tmp_path / "checkpoint-9")


def test_a_run_that_has_saved_nothing_has_no_checkpoint(tmp_path: Path) -> None:
    assert find_checkpoint(tmp_path / "none") is None


def test_the_callback_needs_transformers_and_the_module_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers.trainer_callback", None)
    with pytest.raises(MissingExtraError, match="training with transformers needs transformers"):
        _ = transformers.StreamCallback
