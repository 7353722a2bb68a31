"""`streamd demo`: everything at work, in a minute or two."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from streamd.errors import MissingExtraError


def demo(
    quick: Annotated[bool, typer.Option("--quick", help="A smaller set and fewer epochs: under a minute.")] = False,
    output: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where the model, the chart and the receipts go.")
    ] = Path("streamd-demo"),
) -> None:
    """Draws roads with a steering angle, serves them, trains on them, and kills the daemon on the way.

    The daemon and the trainer are processes of their own, started by the commands you would use. While the trainer
    runs, the daemon is killed with -9 and started again; the receipts then show that nothing was lost or repeated.
    """
    for library, extra in (("pydantic", "serve"), ("rich", "serve"), ("keras", "train"), ("tensorflow", "train")):
        if importlib.util.find_spec(library) is None:
            raise MissingExtraError(library, extra, "streamd demo")
    from streamd.cli.demo.run import FULL_DEMO, QUICK_DEMO, run_demo  # noqa: PLC0415 - only once its libraries are known to be here

    run_demo(QUICK_DEMO if quick else FULL_DEMO, output)
