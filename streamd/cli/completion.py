"""`streamd completion`: what shells want to know of the commands."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

PROGRAMS: Final = ("streamd", "streamd-train")
DAEMON_TIMEOUT_S: Final = 1.0  # for a daemon to answer: somebody has pressed Tab, and waits
_SHARE_FOLDER: Final = Path(__file__).parents[1] / "share"
_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
_SCRIPT_PATHS: Final = {
    "bash": "bash-completion/completions/{}",
    "zsh": "zsh/site-functions/_{}",
    "fish": "fish/vendor_completions.d/{}.fish",
}


class Shell(StrEnum):
    """Whose language a script is in."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="Your shell.")]) -> None:
    """Prints a script by which a shell completes the commands, their options, and the names of streams.

    Names are those of the daemon that runs, or those in the file that --config names. `streamd service install` puts
    the scripts where the shells of this host find them by themselves.

    \b
    Examples:
      eval "$(streamd completion bash)"             in ~/.bashrc
      eval "$(streamd completion zsh)"              in ~/.zshrc, after compinit
      streamd completion fish | source              in ~/.config/fish/config.fish
    """
    for program in PROGRAMS:
        typer.echo(read_script(shell, program), nl=False)


def read_script(shell: str, program: str) -> str:
    """What completes a program in a shell."""
    return build_script_path(shell, program).read_text(encoding="utf-8")


def build_script_path(shell: str, program: str) -> Path:
    """Where a script lies, under a folder like those in which shells look for such scripts."""
    return _SHARE_FOLDER / _SCRIPT_PATHS[shell].format(program)


def streams(line: Annotated[str, typer.Argument(metavar="LINE", help="The command, as far as it is typed.")]) -> None:
    """Prints the names of the streams that a command may mean, one a line: what the scripts ask."""
    words = _split_words(line)
    config = _find_option_value("--config", words)
    names = (
        _read_configured_names(Path(config))
        if config
        else _request_served_names(_find_option_value("--endpoint", words))
    )
    for name in names:
        typer.echo(name)


def _split_words(line: str) -> list[str]:
    """As the shell would split it; a quotation need not have ended yet."""
    for end in ("", '"', "'"):
        try:
            return [os.path.expandvars(word) for word in shlex.split(line + end)]
        except ValueError:
            continue
    return []


def _find_option_value(option: str, words: list[str]) -> str | None:
    """What is given for an option: behind it, or with `=`; a `~` stands for the home."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == option or word.startswith(f"{option}="):
            value = following if word == option else word.partition("=")[2]
            return os.path.expanduser(value) or None  # noqa: PTH111 - an endpoint is no path
    return None


def _read_configured_names(config: Path) -> Iterable[str]:
    """The streams of a configuration, right or wrong as it may be."""
    from ruamel.yaml import YAML  # noqa: PLC0415 - only when it is needed, and without all that checks a configuration

    data = YAML(typ="safe").load(config)
    found = data.get("streams") if isinstance(data, dict) else None
    return [name for name in map(str, found or ()) if _NAME_PATTERN.fullmatch(name)]


def _request_served_names(endpoint: str | None) -> Iterable[str]:
    """The streams of the daemon; where none can be, that is found out before NumPy and ZeroMQ are read."""
    from streamd.ipc.endpoint import find_endpoint  # noqa: PLC0415 - only when it is needed

    found = find_endpoint(endpoint)
    from streamd import connect  # noqa: PLC0415 - as above

    with connect(found, timeout=DAEMON_TIMEOUT_S) as client:
        return list(client.streams())
