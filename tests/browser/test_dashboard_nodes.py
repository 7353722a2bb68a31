"""What the dashboard says of the nodes of a cluster, as they come, fall silent and leave."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Queue
from threading import Thread

import pytest
from msgspec.structs import replace
from playwright.sync_api import expect
from support.chromium import Go
from support.daemon_process import LIMIT_S
from support.dashboard_daemon import cell
from support.monitor_fake import monitor
from support.sample_metrics import STATUS, Books

from streamd.core.status import ClusterStatus, NodeStatus

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

NODES = "Nodes"
DAEMON = replace(STATUS, streams=())
SERVING = NodeStatus("node-a", "serving", 8, 12, 1234.0)
REFUSED = NodeStatus("node-b", "refused", 8, 0, 0.0, "train: its pixels differ; install the same Pillow")


@contextmanager
def a_monitored_cluster(books: Books) -> Iterator[str]:
    """The address of a monitor of made-up figures."""
    loop, addresses, end = asyncio.new_event_loop(), Queue[str](), asyncio.Event()

    async def run() -> None:
        async with monitor(books) as running:
            addresses.put(running.url)
            await end.wait()
        await loop.shutdown_default_executor()

    thread = Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    try:
        yield addresses.get(timeout=LIMIT_S)
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
        loop.close()


def test_nodes_are_a_table_with_state_rate_and_what_they_wait_for(go: Go) -> None:
    books = Books(replace(DAEMON, cluster=ClusterStatus("10.0.0.1:6379", "", (SERVING, REFUSED))))
    with a_monitored_cluster(books) as address:
        page = go(address, forgiven="net::ERR_").page
        expect(cell(page, NODES, "node-a", "State")).to_have_text("serving ")
        expect(cell(page, NODES, "node-a", "Delivered, samples/s")).to_have_text("1,234")
        expect(cell(page, NODES, "node-a", "Workers")).to_have_text("8")
        expect(cell(page, NODES, "node-a", "Tasks")).to_have_text("12")
        expect(cell(page, NODES, "node-b", "State")).to_contain_text("⚠ refused")
        expect(cell(page, NODES, "node-b", "Waits for")).to_have_text(REFUSED.waits_for)
        books.told = replace(DAEMON, cluster=ClusterStatus("10.0.0.1:6379", "", (replace(SERVING, state="silent"),)))
        expect(cell(page, NODES, "node-a", "State")).to_contain_text("⚠ silent")
        expect(page.get_by_role("region", name=NODES).get_by_role("rowheader")).to_have_count(1)


def test_without_a_cluster_there_is_no_table_of_nodes(go: Go) -> None:
    with a_monitored_cluster(Books(DAEMON)) as address:
        page = go(address, forgiven="net::ERR_").page
        expect(page.get_by_role("region", name="Trainers")).to_be_visible()
        expect(page.get_by_role("region", name=NODES)).to_be_hidden()
