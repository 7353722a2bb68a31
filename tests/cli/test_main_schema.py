"""`streamd schema`: one JSON object on standard output."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.config.schema import build_json_schema


def test_the_schema_is_printed_as_it_is_kept() -> None:
    done = CliRunner().invoke(app, ["schema"])
    assert done.exit_code == 0, done.stderr
    assert done.stdout == json.dumps(build_json_schema(), indent=2) + "\n"
