"""Records in company: what comes out is what went in, and what is damaged is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.errors import ProtocolError
from streamd.ipc.frames import bundle_records, split_records

RECORD = st.binary(min_size=1, max_size=40).filter(lambda record: record[0] != 8)


@given(st.lists(RECORD, min_size=1, max_size=9))
def test_a_bundle_holds_its_records_in_order(records: list[bytes]) -> None:
    assert split_records(bundle_records(records)) == records


def test_a_single_record_travels_as_it_is() -> None:
    assert bundle_records([b"one"]) == b"one"
    assert split_records(b"one") == [b"one"]


@given(st.lists(RECORD, min_size=2, max_size=5), st.data())
def test_a_bundle_cut_anywhere_but_between_two_records_is_refused(records: list[bytes], data: st.DataObject) -> None:
    whole = bundle_records(records)
    ends = {len(bundle_records(records[:count])) + (5 if count == 1 else 0) for count in range(1, len(records) + 1)}
    cut = data.draw(st.integers(1, len(whole) - 1).filter(lambda at: at not in ends))

    with pytest.raises(ProtocolError, match="a bundle of"):
        split_records(whole[:cut])


def test_an_empty_bundle_is_refused() -> None:
    with pytest.raises(ProtocolError, match="a bundle of 0 records"):
        split_records(b"\x08")
