"""The keys that may connect to a gate, as their folder holds them now, and what each may use.

Bounds keep a key, or somebody without one, from taking the gate's time from others. Time is an argument.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from pathlib import Path
from typing import Final

from streamd.core.leaky_bucket import LeakyBucket
from streamd.ipc.key_files import ClientKey, format_fingerprint, list_key_files, read_client_keys
from streamd.limits import (
    KEY_CONNECTIONS_A_S,
    KEY_CONNECTIONS_BURST,
    MAX_CLIENT_KEYS,
    STRANGER_CONNECTIONS_A_S,
    STRANGER_CONNECTIONS_BURST,
)

_LOG: Final = logging.getLogger("streamd.gate")
_SETTING: Final = "curve.clients"
_REMEMBERED_STRANGERS: Final = 256  # keys without rights of which the log has a line already


class ClientKeys:
    """The keys in `folder`. Nobody is allowed before `reload` has read it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[Path, tuple[int, int, int]] | None = None  # as they were read; None: never
        self._keys: dict[str, ClientKey] = {}
        self.generation = 0  # how often the keys have changed
        self._buckets: dict[str, LeakyBucket] = {}
        self._strangers_bucket = LeakyBucket(STRANGER_CONNECTIONS_A_S)
        self._strangers: OrderedDict[str, None] = OrderedDict()  # the newest last

    def find(self, public: str) -> ClientKey | None:
        """Returns a key that may connect, None for any other."""
        return self._keys.get(public)

    def reload(self) -> None:
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
        self._buckets = {public: bucket for public, bucket in self._buckets.items() if public in self._keys}
        for fault in faults:
            _LOG.warning("%s", fault)
        self.generation += 1

    def admit(self, public: str, address: str, now_s: float) -> ClientKey | None:
        """Returns the key of a client that connects now, None if it is refused. Each stranger is logged once."""
        if public not in self._keys and self._strangers_bucket.compute_level(now_s) < STRANGER_CONNECTIONS_BURST:
            self._strangers_bucket.add(1.0, now_s)
            self.reload()  # its file may be there by now
            if public not in self._keys:
                self._note_stranger(public, address)
        key = self._keys.get(public)
        if key is None:
            return None
        bucket = self._buckets.setdefault(public, LeakyBucket(KEY_CONNECTIONS_A_S))
        if bucket.compute_level(now_s) >= KEY_CONNECTIONS_BURST:
            return None
        bucket.add(1.0, now_s)
        return key

    def _note_stranger(self, public: str, address: str) -> None:
        if public in self._strangers:
            return
        self._strangers[public] = None
        if len(self._strangers) > _REMEMBERED_STRANGERS:
            self._strangers.popitem(last=False)
        _LOG.warning(
            "a client at %s was refused: its key %s is not in %s", address, format_fingerprint(public), self._folder
        )
