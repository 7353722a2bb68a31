"""The rows of docs/evidence/faults.md."""

from __future__ import annotations

from typing import Final

# Every fault that may befall the daemon and its trainers, whether anything provokes it or not.
ROWS: Final = {
    "1": "none: the yardstick",
    "2": "a group of ranks",
    "3": "a group resized at a step's end",
    "4": "daemon killed",
    "5": "daemon killed with its workers",
    "6": "daemon killed between writing and sending",
    "7": "trainer killed and resumed",
    "8": "trainer killed with mapped slots",
    "9": "somebody stopped and continued",
    "10": "trainer busy",
    "11": "trainer stopped for ever",
    "12": "trainer ten times slower",
    "13": "packets lost, late, out of order",
    "14": "network gone for 45 s",
    "15": "network gone one way",
    "16": "TCP connections killed",
    "17": "a slow network, large batches",
    "18": "two consumers of one name",
    "19": "old frames replayed",
    "20": "an acknowledgement after its lease",
    "21": "daemon killed within a write to its ledger",
    "22": "disk full",
    "23": "damaged and odd images",
    "24": "decompression bombs",
    "25": "other things posing as images",
    "26": "workers killed, crashed, out of memory, hung",
    "27": "files changed, gone, unreadable",
    "28": "a plugin that loosens the decoder",
    "29": "every EXIF orientation",
    "30": "the same bytes, whatever differs",
    "31": "tokens at every edge, and false ones",
    "32": "endless frames",
    "33": "malformed frames",
    "34": "floods of connections",
    "35": "floods of subscriptions",
    "36": "lies about credit",
    "37": "a client that writes to its mapping",
    "38": "another user on the machine",
    "39": "wrong keys",
    "40": "two daemons in one place",
    "41": "the clock set",
    "42": "the event loop blocked",
    "43": "ended and reloaded under load",
    "44": "descriptors used up",
    "45": "a fork after connecting",
    "46": "batches fetched ahead at a checkpoint",
    "47": "client and daemon of other versions",
    "48": "hours of all that",
    "49": "the data away for a while",
    "cut": "connection cut",
}
_NETWORK: Final = "benchmarks/remote.py measures it over a link of its own, and docs/remote.md has the figures"
_NOT_PLANNED: Final = "not planned: no group shares batches by a ledger"
WHY_NOT: Final[dict[str, str]] = {
    **dict.fromkeys(["13", "14", "15", "16", "17"], _NETWORK),
    **dict.fromkeys(["18", "20", "21"], _NOT_PLANNED),
    **dict.fromkeys(["32", "33", "34", "35", "36", "37", "38", "39"], "abuse.md has it"),
    "24": "abuse.md has it",
    "47": "there is one version so far",
    "48": "run by scripts/bench soak, which writes its own page",
}
ABOUT: Final = (
    "Written by `scripts/test --faults --report`, never by hand. Trainers are processes that write down every batch "
    "that they take; an oracle that lists and decodes the data by itself compares what they wrote with the plan and "
    "the files (`tests/faults/oracle.py`). Rows are those of `tests/fault_rows.py`; a seed runs again with "
    "`scripts/test --faults --seed N`."
)
