"""The one build step that pyproject.toml cannot say: the JSON schema of config.yaml is made of the models, for editors.

It is written into the source tree, which an editable install uses as it is; wheel and source distribution take it from
there, as they take other files of the package.
"""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent


def write_schema() -> None:
    """Writes what `streamd schema` prints."""
    sys.path.insert(0, str(ROOT))  # a backend does not find the package that it builds
    from streamd.config.schema import format_json_schema  # noqa: PLC0415 - only once it is found

    (ROOT / "streamd/config/config.schema.json").write_text(format_json_schema(), encoding="utf-8")


class BuildWithSchema(build_py):
    """Builds a wheel or an editable install."""

    def run(self) -> None:
        write_schema()
        super().run()


class DistributeWithSchema(sdist):
    """Builds a source distribution, from which a wheel can be built like from the repository."""

    def run(self) -> None:
        write_schema()
        super().run()


setup(cmdclass={"build_py": BuildWithSchema, "sdist": DistributeWithSchema})
