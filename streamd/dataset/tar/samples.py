"""Groups the files of a shard into samples, as WebDataset does: files with the same key belong together.

The key is a file's name up to the first dot after its folder, and the rest is the suffix, in any case of letters: a
shard's `a/7.jpg`, `a/7.cls` and `a/7.meta.json` are the sample `a/7.jpg`, with two files beside it. The image is the
file with the suffix of an image, or if there is none, the one whose suffix ends so, such as `7.left.jpg`. Bookkeeping
is left out, as in a folder.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from streamd.core.text import escape_unprintable, format_count
from streamd.dataset.paths.confined import (
    IMAGE_SUFFIXES,
    PROGRESS_FILES,
    find_near_names,
    format_first_names,
    format_near_name,
    format_path,
)
from streamd.dataset.paths.folder_entries import LeftOutNames, has_bookkeeping
from streamd.dataset.tar.headers import BrokenTarError, TarMember, TarReader, TruncatedTarError
from streamd.errors import ConfigError

_IMAGE_SUFFIXES: Final = frozenset(suffix[1:] for suffix in IMAGE_SUFFIXES)
_SHOWN_SUFFIXES: Final = 8  # in a message
_LEADING: Final = re.compile(rb"\A(?:\.{0,2}/)+")  # as tar itself drops it

MembersBySuffix = dict[bytes, dict[bytes, TarMember]]  # by suffix and key


@dataclass(slots=True)
class Shard:
    """An open shard.

    `images` are by key, in byte order of their names. `other_files` are by suffix and key, whether beside an image or
    not. `parts` are the images of samples that have several, by suffix and key; empty where each sample has one.
    """

    name: bytes
    tar: TarReader
    images: dict[bytes, TarMember] = field(default_factory=dict)
    other_files: MembersBySuffix = field(default_factory=dict)
    parts: MembersBySuffix = field(default_factory=dict)
    left_out: LeftOutNames = field(default_factory=LeftOutNames)

    @property
    def suffix_summary(self) -> str:
        """The number of files of each suffix, for a message."""
        found = Counter({suffix: len(files) for suffix, files in self.other_files.items()})
        found.update(image.name.rpartition(b".")[2].lower() for image in self.images.values())
        return format_suffixes(found)


def read_shard(
    name: bytes,
    descriptor: int,
    size: int,
    key: str,
    progress: Callable[[int], None],
    suffixes: Sequence[bytes] = (),
) -> Shard:
    """Reads the headers of an open shard. With `suffixes`, each sample has an image of every suffix.

    `key` is the configuration key of its path. `progress` is called with the number of images seen. Raises ConfigError,
    naming the shard, if it is no whole tar, or if two of its files are the same part of a sample; OSError.
    """
    shard = Shard(name, TarReader(descriptor, size), parts={suffix: {} for suffix in suffixes})
    others: dict[bytes, list[TarMember]] = {}  # images by key, of suffixes that only end as an image's
    end = 0
    try:
        for member in shard.tar.read_members():
            _add_member(shard, others, member, key)
            end = member.next_header_offset
            if len(shard.images) % PROGRESS_FILES == 0:
                progress(len(shard.images))
    except TruncatedTarError as error:
        keep = (
            f", or keep its {format_count(len(shard.images), 'whole image')} with truncate -s {end}"
            if shard.images
            else ""
        )
        raise ConfigError(f"{key}: {format_path(name)}: {error}; copy it again{keep}") from error
    except BrokenTarError as error:
        raise ConfigError(f"{key}: {format_path(name)}: {error}") from error
    # With suffixes, no sample may lack an image, and that of the first suffix is its own.
    for suffix, files in shard.parts.items():
        for other, having in shard.parts.items():
            if lone := sorted(having.keys() - files.keys()):
                raise ConfigError(
                    f"{key}: {format_path(name)} has no {_format_suffix(suffix)} of "
                    f"{format_count(len(lone), 'sample')} with {_format_suffix(other)}: {format_first_names(lone)}; "
                    "pack every sample with all of its images, or correct the suffixes in images"
                    f"{suggest_near_key(lone, files)}"
                )
    if suffixes:
        shard.images = dict(shard.parts[suffixes[0]])
    # A suffix such as `left.jpg` makes a file the image only if its sample has no other one, which is known at the end.
    for sample, members in others.items():
        if sample not in shard.images:
            if len(members) > 1:
                raise _duplicate_error(shard, members, key)
            shard.images[sample] = members[0]
    links = [link for link in shard.tar.links if link.lower().endswith(IMAGE_SUFFIXES) and not has_bookkeeping(link)]
    if links:
        raise ConfigError(
            f"{key}: {format_path(shard.name)} holds links in place of images: {format_first_names(links)}; "
            "pack it again with tar --dereference --hard-dereference"
        )
    shard.images = dict(sorted(shard.images.items(), key=lambda each: each[1].name))
    return shard


def _add_member(shard: Shard, others: dict[bytes, list[TarMember]], member: TarMember, key: str) -> None:
    """Adds a file to the images, or to `others`, or to the other files, unless it is bookkeeping."""
    name = _LEADING.sub(b"", member.name)
    member = TarMember(name, member.offset, member.size)
    if has_bookkeeping(name):
        shard.left_out.add_file(name)
        return
    folder, slash, base = name.rpartition(b"/")
    stem, _, suffix = base.partition(b".")
    sample, suffix = folder + slash + stem, suffix.lower()
    if suffix in shard.parts:
        earlier = shard.parts[suffix].setdefault(sample, member)
    elif suffix in _IMAGE_SUFFIXES and not shard.parts:
        earlier = shard.images.setdefault(sample, member)
    elif suffix.rpartition(b".")[2] in _IMAGE_SUFFIXES and not shard.parts:
        others.setdefault(sample, []).append(member)
        return
    else:
        earlier = shard.other_files.setdefault(suffix, {}).setdefault(sample, member)
    # `setdefault` has returned an earlier file: the sample has an image already, or a file with the same suffix.
    if earlier is not member:
        raise _duplicate_error(shard, [earlier, member], key)


def _duplicate_error(shard: Shard, members: list[TarMember], key: str) -> ConfigError:
    first, second = (member.name for member in members[:2])
    if first == second:
        return ConfigError(
            f"{key}: {format_path(shard.name)} holds {format_path(first)} twice; pack the shard again with only one "
            "of them"
        )
    suffix = escape_unprintable(first.rpartition(b"/")[2].partition(b".")[2].decode(errors="replace"))
    noun = "image" if first.lower().endswith(IMAGE_SUFFIXES) else f".{suffix} file"
    return ConfigError(
        f"{key}: {format_path(shard.name)} holds {format_path(first)} and {format_path(second)}, which are two "
        f"{noun}s of one sample, because their names are the same up to the first dot; a sample has only one {noun}: "
        f"pack the other {noun} elsewhere, or under another name"
    )


def format_suffixes(suffixes: Counter[bytes]) -> str:
    """Formats the number of files of each suffix, for a message."""
    most = suffixes.most_common(_SHOWN_SUFFIXES)
    return ", ".join(f"{count} {_format_suffix(suffix)}" for suffix, count in most) or "nothing"


def _format_suffix(suffix: bytes) -> str:
    return escape_unprintable(f".{suffix.decode(errors='backslashreplace')}") if suffix else "without one"


def list_stray_files(shard: Shard) -> list[tuple[bytes, bytes]]:
    """Returns the suffix and the sample of each file that belongs to no image."""
    return [
        (suffix, sample)
        for suffix, files in shard.other_files.items()
        for sample in files
        if sample not in shard.images
    ]


def suggest_near_key(lone: Iterable[bytes], others: Iterable[bytes]) -> str:
    """Returns a remark on the first sample whose other files are there in another spelling; empty if there is none."""
    near = next(iter(find_near_names(lone, others).items()), None)
    return "" if near is None else f"; {format_near_name(*near)}"
