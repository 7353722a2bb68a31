"""The pack formats by name. A format's libraries are imported only when it is used."""

from __future__ import annotations

from typing import Final, Literal

from streamd.cli.pack.writer import PackJob, PackWriter
from streamd.errors import ConfigError
from streamd.limits import MIB, PACK_SHARD_BYTES, PACK_TAR_BYTES

PackFormat = Literal["npy", "tar", "hdf5", "lmdb"]
_SINGLE_FILE_FORMATS: Final = frozenset({"hdf5", "lmdb"})
PACK_FORMATS: Final[tuple[PackFormat, ...]] = ("npy", "tar", "hdf5", "lmdb")


def open_pack_writer(name: PackFormat, job: PackJob, shard_bytes: int | None) -> PackWriter:
    """Opens the writer of a format. Raises MissingExtraError, and ConfigError for shards of a format without shards."""
    if shard_bytes is not None and name in _SINGLE_FILE_FORMATS:
        raise ConfigError(f"--shard is for npy and tar; a pack in {name} is one file: leave --shard out")
    if shard_bytes is not None and shard_bytes < MIB:
        raise ConfigError(f"--shard {shard_bytes}: a file takes 1MiB at least, or there are too many of them")
    match name:
        case "npy":
            from streamd.cli.pack.write_npy import NpyWriter  # noqa: PLC0415 - a format's libraries when it is wanted

            return NpyWriter(job, shard_bytes or PACK_SHARD_BYTES)
        case "tar":
            from streamd.cli.pack.write_tar import TarWriter  # noqa: PLC0415 - as above

            return TarWriter(job, shard_bytes or PACK_TAR_BYTES)
        case "hdf5":
            from streamd.cli.pack.write_hdf5 import Hdf5Writer  # noqa: PLC0415 - as above

            return Hdf5Writer(job)
        case "lmdb":
            from streamd.cli.pack.write_lmdb import LmdbWriter  # noqa: PLC0415 - as above

            return LmdbWriter(job)
