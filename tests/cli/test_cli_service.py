"""`streamd service`: who may ask."""

from __future__ import annotations

import os

import pytest

from streamd.cli.main import main


@pytest.mark.parametrize("what", ["install", "remove"])
def test_who_is_not_root_is_told_what_to_type(
    what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr("sys.argv", ["streamd", "service", what])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("streamd: run it as root:  sudo ")
