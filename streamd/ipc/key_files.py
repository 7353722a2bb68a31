"""Files with CURVE keys, in pyzmq's certificate format: comments, metadata, and keys in quotes.

A public file names one key. A secret file also holds the secret half, and is for its owner alone; others cannot be kept
from it by this module, so a file that they could read is refused.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from streamd.core.host import open_regular_file
from streamd.core.text import FIRST_KEY_USER
from streamd.errors import ConfigError
from streamd.limits import MAX_KEY_FILE_BYTES

PUBLIC_SUFFIX: Final = ".key"
SECRET_SUFFIX: Final = ".key_secret"  # noqa: S105 - the end of a file's name
_VALUE: Final = re.compile(r"""\s*([a-z-]+)\s*=\s*["']([^"']*)["']\s*(?:#.*)?""")
_KEY: Final = re.compile(r"[!-~]{40}")  # a key in the text form of ZeroMQ: 32 bytes in 40 printable characters
_SECRET_MODE: Final = 0o600
_PUBLIC_MODE: Final = 0o644
_OTHERS_BITS: Final = 0o007
_GROUP_BITS: Final = 0o070
_FINGERPRINT_CHARS: Final = 8


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A public and a secret key, as text."""

    public: str
    secret: str


@dataclass(frozen=True, slots=True)
class ClientKey:
    """A key that may connect: its `name` is its file's. `streams`: those that it may read; None for all."""

    name: str
    public: str
    streams: frozenset[str] | None = None

    def may_read(self, stream: str) -> bool:
        return self.streams is None or stream in self.streams


def compute_key_user(public: str) -> int:
    """Returns the number that stands for a key where others have a uid: the same at every start."""
    return FIRST_KEY_USER + int.from_bytes(hashlib.sha256(public.encode()).digest()[:4], "big")


def format_fingerprint(public: str) -> str:
    """Returns the short name of a key in messages, in hexadecimal."""
    return hashlib.sha256(public.encode()).hexdigest()[:_FINGERPRINT_CHARS]


def format_key_file(keys: KeyPair, *, is_secret: bool) -> str:
    """Returns the text of a key file."""
    kind = "secret" if is_secret else "public"
    care = "Keep it to yourself." if is_secret else "It may be read by anyone."
    lines = [f"# The {kind} key file of a CURVE key pair, made by streamd keygen. {care}", "metadata", "curve"]
    lines.append(f'    public-key = "{keys.public}"')
    if is_secret:
        lines.append(f'    secret-key = "{keys.secret}"')
    return "\n".join([*lines, ""])


def write_key_files(folder: Path, name: str, keys: KeyPair) -> tuple[Path, Path]:
    """Writes both files of a key pair, and returns their paths: public, secret. Replaces no file.

    Raises ConfigError when a file exists, and OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    public, secret = folder / f"{name}{PUBLIC_SUFFIX}", folder / f"{name}{SECRET_SUFFIX}"
    for path in (public, secret):
        if path.exists() or path.is_symlink():
            raise ConfigError(f"{path} exists already; name another pair with --name, or remove both files of this one")
    for path, mode in ((secret, _SECRET_MODE), (public, _PUBLIC_MODE)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(format_key_file(keys, is_secret=path == secret))
    return public, secret


def read_key_pair(path: Path, key: str) -> KeyPair:
    """Reads a secret file. `key` says in messages who names the file. Raises ConfigError, also for an open file."""
    values = _read_values(path, key, is_secret=True)
    if "secret-key" not in values:
        raise ConfigError(f"{key}: {path} has no secret key; name the file that ends in {SECRET_SUFFIX}")
    return KeyPair(_find_key(values, "public-key", path, key), _find_key(values, "secret-key", path, key))


def read_public_key(path: Path, key: str) -> str:
    """Reads the public key of a file. `key` says in messages who names the file. Raises ConfigError."""
    return _find_key(_read_values(path, key), "public-key", path, key)


def read_client_key(path: Path, key: str) -> ClientKey:
    """Reads a client's public file with its rights. Raises ConfigError."""
    values = _read_values(path, key)
    streams = values.get("streams")
    rights = None if streams is None else frozenset(streams.split())
    return ClientKey(path.name.removesuffix(PUBLIC_SUFFIX), _find_key(values, "public-key", path, key), rights)


def list_key_files(folder: Path) -> dict[Path, tuple[int, int, int]]:
    """Returns the public files in a folder, with what changes when one is written. Raises OSError."""
    with os.scandir(folder) as entries:
        paths = sorted(Path(each.path) for each in entries if each.name.endswith(PUBLIC_SUFFIX))
    versions = dict.fromkeys(paths, (0, 0, 0))
    for path in paths:
        with suppress(OSError):  # a link that leads nowhere, or a file just removed: reading it reports that
            state = path.stat()
            versions[path] = state.st_ino, state.st_mtime_ns, state.st_size
    return versions


def read_client_keys(paths: Collection[Path], key: str) -> tuple[dict[str, ClientKey], list[str]]:
    """Reads the keys of clients, by public key, and the faults of files that are none, which admit nobody."""
    keys, faults = {}, []
    for path in paths:
        try:
            client = read_client_key(path, key)
        except ConfigError as error:
            faults.append(str(error))
        else:
            keys[client.public] = client
    return keys, faults


def _read_values(path: Path, key: str, *, is_secret: bool = False) -> Mapping[str, str]:
    try:
        with open_regular_file(path) as file:
            text, state = file.read(MAX_KEY_FILE_BYTES + 1), os.fstat(file.fileno())
    except OSError as error:
        raise ConfigError(
            f"{key}: cannot read {path}: {error.strerror}; `streamd keygen DIR` makes a pair of keys"
        ) from error
    if len(text) > MAX_KEY_FILE_BYTES:
        raise ConfigError(f"{key}: {path} is no key file: it has more than {MAX_KEY_FILE_BYTES} bytes")
    matches = (_VALUE.fullmatch(line) for line in text.decode(errors="replace").splitlines())
    values = {match[1]: match[2] for match in matches if match}
    # Other users must not read a secret file; Windows has no such rights in the mode. A group may read a file that
    # belongs to another user: so systemd and Kubernetes hand over secrets.
    if is_secret and "secret-key" in values and hasattr(os, "geteuid"):
        forbidden = _OTHERS_BITS | (_GROUP_BITS if state.st_uid == os.geteuid() else 0)
        mode = stat.S_IMODE(state.st_mode)
        if mode & forbidden:
            raise ConfigError(
                f"{key}: other users can read or write {path}, whose mode is {mode:04o}: run  chmod "
                f"{mode & ~forbidden:o} {path}  and make a new pair of keys if somebody may have read this one"
            )
    return values


def _find_key(values: Mapping[str, str], name: str, path: Path, key: str) -> str:
    value = values.get(name, "")
    if not _KEY.fullmatch(value):
        raise ConfigError(f"{key}: {path} is no key file: it has no {name}; `streamd keygen DIR` makes a pair of keys")
    return value
