"""An environment for each kind of peer: environments/NAME, a venv with exactly peers/requirements/NAME.txt.

    python benchmarks/compare_environments.py NAME...

makes those that are not up to date.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
INSTALL_S: Final = 1800.0
_STAMP: Final = "requirements.sha256"


class EnvironmentFailedError(Exception):
    """An environment that cannot be made; its message is the last thing that was said."""


def last_line(text: str) -> str:
    """The last line that says anything, without the installer's colours and notices."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("[notice]")]
    return lines[-1] if lines else "nothing was said"


def python_of(name: str | None) -> Path:
    """The Python of an environment; of None, the one that runs this. Makes the environment when it is not up to date.

    Raises EnvironmentFailedError.
    """
    if name is None:
        return Path(sys.executable)
    folder, wanted = HERE / "environments" / name, HERE / "peers" / "requirements" / f"{name}.txt"
    if not wanted.exists():
        raise EnvironmentFailedError(f"there is no {wanted.relative_to(HERE)}")
    digest = hashlib.sha256(wanted.read_bytes()).hexdigest()
    stamp, python = folder / _STAMP, folder / "bin" / "python"
    if not stamp.exists() or stamp.read_text().strip() != digest:
        print(f"installing {wanted.relative_to(HERE)} (minutes, the first time)", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        _install(python, wanted)
        stamp.write_text(f"{digest}\n")
    return python


def _install(python: Path, wanted: Path) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(wanted)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired as late:
        raise EnvironmentFailedError(f"pip took longer than {INSTALL_S:.0f} s") from late
    if done.returncode:
        raise EnvironmentFailedError(last_line(done.stderr))


def main() -> None:
    for name in sys.argv[1:]:
        try:
            print(python_of(name))
        except EnvironmentFailedError as error:
            sys.exit(f"compare_environments: {name}: {error}")


if __name__ == "__main__":
    main()
