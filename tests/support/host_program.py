"""One host of a job: a daemon and its trainers, started in namespaces of their own by `support.many_hosts`.

    python host_program.py CONFIG STATE LOG

It starts the daemon and prints a line when that serves. Then each line on standard input is a leg of the job: ranks
that read so many steps from a token. Each is answered by one line, when all of its ranks are there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import streamd
from streamd.frameworks.receipt_file import ReceiptFile, receipt_file_path
from support.daemon_process import wait_until

LIMIT_S = 60.0


def serve(config: Path, state: Path, log: Path) -> subprocess.Popen[bytes]:
    """Starts the daemon, and waits until it serves."""
    with log.open("ab") as out:
        command = [sys.executable, "-m", "streamd.cli.main", "serve", "--config", str(config)]
        environment = os.environ | {"STATE_DIRECTORY": str(state)}
        daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment)
    wait_until(lambda: b"daemon.ready" in log.read_bytes() or daemon.poll() is not None, "it serves", LIMIT_S)
    if daemon.poll() is not None:
        raise SystemExit(log.read_text())
    return daemon


def read_leg(endpoint: str, leg: dict[str, Any], rank: int) -> dict[str, Any]:
    """Reads one rank's steps of a leg, and writes its receipts."""
    taken: list[list[int]] = []
    with streamd.connect(endpoint) as client:
        wish = {"epochs": 1, "rank": rank, "world": leg["world"], "resume": leg["token"], "name": f"rank {rank}"}
        with client.subscribe("train", **wish) as stream:
            batches: Iterator[Any] = iter(stream) if leg["steps"] is None else islice(stream, leg["steps"])
            for batch in batches:
                taken.append(batch.sample_ids.tolist())
                if len(taken) == leg["dies_after"]:
                    os.killpg(0, 9)
            token = stream.token
        ReceiptFile(receipt_file_path(Path(leg["receipts"]), rank)).append_new_receipts(stream.receipts)
    return {"rank": rank, "token": token, "taken": taken}


def answer(line: str) -> None:
    """Answers the test that started this host."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Runs the host until its input ends."""
    config, state, log = map(Path, sys.argv[1:])
    endpoint = json.loads(config.read_text())["listen"][0]
    daemon = serve(config, state, log)
    answer("ready")
    for line in sys.stdin:
        leg = json.loads(line)
        with ThreadPoolExecutor(len(leg["ranks"])) as pool:
            found = list(pool.map(lambda rank, leg=leg: read_leg(endpoint, leg, rank), leg["ranks"]))
        answer(json.dumps(found))
    daemon.terminate()
    daemon.wait(LIMIT_S)


if __name__ == "__main__":
    main()
