"""`streamd serve`, as far as it is not the daemon."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.errors import ConfigError


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_help_shows_the_options_and_loads_nothing_heavy() -> None:
    done = run_python(
        "import sys; sys.argv = ['streamd', 'serve', '--help']\n"
        "import atexit; atexit.register(lambda: print(*sys.modules))\n"
        "from streamd.cli.main import main; main()"
    )
    assert done.returncode == 0, done.stderr
    assert "--config" in done.stdout
    assert "--rescan" in done.stdout
    loaded = done.stdout.split()
    assert "streamd.cli.main" in loaded
    assert {"zmq", "numpy", "PIL", "ruamel.yaml", "streamd.daemon.daemon"} & set(loaded) == set()


def test_a_missing_library_names_the_extra() -> None:
    done = run_python(
        "import sys; sys.modules['ruamel.yaml'] = None; sys.argv = ['streamd', 'serve', '--config', 'x']\n"
        "from streamd.cli.main import main; main()"
    )
    assert done.returncode == 2
    assert done.stderr == (
        "streamd: streamd serve needs ruamel.yaml, which is not installed: run  pip install 'streamd-loader[serve]'\n"
    )


def test_the_configuration_has_to_be_named() -> None:
    done = CliRunner().invoke(app, ["serve"])
    assert done.exit_code == 2
    assert "--config" in done.stderr


def test_a_configuration_that_is_not_there_is_a_config_error(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["serve", "--config", str(tmp_path / "config.yaml")])
    assert isinstance(done.exception, ConfigError)
    with pytest.raises(ConfigError, match="there is no such file"):
        raise done.exception
