"""What check and its reading processes say survives the way through a pipe."""

from __future__ import annotations

import msgspec
import pytest
from support.sample_specs import SPEC

from streamd.cli.check.reader_messages import GroupResult, SampleFault, SampleGroup, StreamToRead

SEEN = GroupResult(
    1, [3, 4], 0.5, 0.25, {"JPEG": 1}, {"640x480": 1}, 1, ["00" * 16], [SampleFault(4, "an empty file", "verdict")]
)


@pytest.mark.parametrize("record", [SEEN, SampleGroup(2, [5, 6]), StreamToRead(SPEC, "/a/manifest")], ids=repr)
def test_a_record_is_one_line_and_comes_back_as_it_was(record: GroupResult | SampleGroup | StreamToRead) -> None:
    line = msgspec.json.encode(record)
    assert b"\n" not in line
    assert msgspec.json.decode(line, type=type(record)) == record


def test_an_effect_that_nobody_knows_is_refused() -> None:
    line = msgspec.json.encode(SEEN).replace(b"verdict", b"verdikt")
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(line, type=GroupResult)
