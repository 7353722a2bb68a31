"""`streamd schema`: what editors want to know of config.yaml."""

from __future__ import annotations

import json

import typer


def schema() -> None:
    """Prints the JSON schema of config.yaml, by which editors complete keys, explain them and underline mistakes.

    Most editors heed a first line in the configuration that names the schema's file, beside it or anywhere else:

    \b
    Example:
      streamd schema > config.schema.json
      # yaml-language-server: $schema=config.schema.json
    """
    from streamd.config.schema import build_json_schema  # noqa: PLC0415 - the configuration's libraries only when needed

    typer.echo(json.dumps(build_json_schema(), indent=2))
