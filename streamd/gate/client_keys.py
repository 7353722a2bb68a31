"""The keys that may connect to a gate, as their folder holds them now, and what each may use.

Bounds keep a key, or somebody without one, from taking the gate's time from others. Time is an argument.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from streamd.core.leaky_bucket import LeakyBucket
from streamd.ipc.key_files import ClientKey, format_fingerprint, list_key_files, read_client_keys
from streamd.limits import (
    KEY_CONNECTIONS_A_S,
    KEY_CONNECTIONS_BURST,
    KEY_FRAMES_A_S,
    KEY_FRAMES_BURST,
    MAX_CLIENT_KEYS,
    STRANGER_CONNECTIONS_A_S,
    STRANGER_CONNECTIONS_BURST,
)

_LOG: Final = logging.getLogger("streamd.gate")
_SETTING: Final = "curve.clients"
_REMEMBERED_STRANGERS: Final = 256  # keys without rights of which the log has a line already


@dataclass(slots=True)
class _KeyUse:
    """What the clients of a key have taken of the gate lately."""

    connections: LeakyBucket = field(default_factory=lambda: LeakyBucket(KEY_CONNECTIONS_A_S))
    frames: LeakyBucket = field(default_factory=lambda: LeakyBucket(KEY_FRAMES_A_S))


class ClientKeys:
    """The keys in `folder`. Nobody is allowed before `reload_keys` has read it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[Path, tuple[int, int, int]] | None = None  # as they were read; None: never
        self._keys: dict[str, ClientKey] = {}
        self.generation = 0  # how often the keys have changed
        self._uses: dict[str, _KeyUse] = {}  # by public key; of those that may connect
        self._strangers_bucket = LeakyBucket(STRANGER_CONNECTIONS_A_S)
        self._strangers: OrderedDict[str, None] = OrderedDict()  # the newest last

    def find_key(self, public: str) -> ClientKey | None:
        """Returns a key that may connect, None for any other."""
        return self._keys.get(public)

    def reload_keys(self) -> None:
        """Reads the files again if any has changed. Without its folder, nobody is allowed."""
        try:
            files = list_key_files(self._folder)
        except OSError as error:
            if self._files != {} or self._keys:
                _LOG.warning(
                    "%s: cannot read %s: %s; nobody on another host is let in", _SETTING, self._folder, error.strerror
                )
            files = {}
        if files == self._files:
            return
        if len(files) > MAX_CLIENT_KEYS:
            _LOG.warning("%s: %d keys; only the first %d may connect", _SETTING, len(files), MAX_CLIENT_KEYS)
        self._files = files
        self._keys, faults = read_client_keys(list(files)[:MAX_CLIENT_KEYS], _SETTING)
        self._uses = {public: use for public, use in self._uses.items() if public in self._keys}
        for fault in faults:
            _LOG.warning("%s", fault)
        self.generation += 1

    def admit_client(self, public: str, address: str, now_s: float) -> ClientKey | None:
        """Returns the key of a client that connects now, None if it is refused. Each stranger is logged once."""
        if public not in self._keys and self._strangers_bucket.compute_level(now_s) < STRANGER_CONNECTIONS_BURST:
            self._strangers_bucket.add(1.0, now_s)
            self.reload_keys()  # its file may be there by now
            if public not in self._keys and public not in self._strangers:
                self._strangers[public] = None
                if len(self._strangers) > _REMEMBERED_STRANGERS:
                    self._strangers.popitem(last=False)
                fingerprint = format_fingerprint(public)
                _LOG.warning("a client at %s was refused: its key %s is not in %s", address, fingerprint, self._folder)
        key = self._keys.get(public)
        if key is None:
            return None
        connections = self._uses.setdefault(public, _KeyUse()).connections
        if connections.compute_level(now_s) >= KEY_CONNECTIONS_BURST:
            return None
        connections.add(1.0, now_s)
        return key

    def count_frame(self, public: str, now_s: float) -> bool:
        """Counts a frame of a key, and returns whether all its clients together have kept to their rate."""
        frames = self._uses.setdefault(public, _KeyUse()).frames
        frames.add(1.0, now_s)
        return frames.compute_level(now_s) <= KEY_FRAMES_BURST
