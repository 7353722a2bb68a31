"""What streamd never does, shown by an audit hook in daemon, workers and a trainer while they do all that they do."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from support.audit_watch import Watch, watch_processes
from support.daemon_process import DaemonProcess, wait_until, write_images
from support.lmdb_files import write_lmdb
from support.monitor_requests import fetch
from support.stores_on_disk import PIXELS, write_hdf5
from support.tar_shards import pack_folder

HERE: Final = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Watched:
    """What was seen, by stream what the trainer read, the monitor's token, and what others can see of the daemon."""

    watch: Watch
    read: dict[str, Any]
    token: str
    pool_workers: int
    exposed: bytes


def write_data(folder: Path) -> dict[str, Any]:
    """Data of every kind, and the streams over them."""
    images = write_images(folder / "images", {"cat": 12, "dog": 12})
    (images / "cat" / "0003.jpg").write_bytes(b"\xff\xd8 no picture")
    rows = [f"cat/{number:04}.jpg,{number}" for number in range(4, 12)]
    (folder / "all.csv").write_text("\n".join(["path,angle", *rows]))
    pack_folder(folder / "shard.tar", images / "dog")
    write_hdf5(folder / "samples.hdf5", chunks=(4, *PIXELS.shape[1:]), compression="gzip")
    np.save(folder / "pixels.npy", PIXELS)
    write_lmdb(folder / "x.lmdb", [{"X": row, "y": number} for number, row in enumerate(PIXELS)])
    small: dict[str, Any] = {"image": {"size": [16, 16]}, "batch_size": 4}
    table = {"kind": "table", "path": str(folder / "all.csv"), "image": "path", "root": str(images)}
    cache = {"path": str(folder / "cache"), "max": "16MiB"}
    return {
        "folder": {"source": {"kind": "folder", "path": str(images)}, "cache": cache, **small},
        "table": {"source": table, "labels": {"angle": "float"}, **small},
        "tar": {"source": {"kind": "tar", "path": str(folder / "shard.tar")}, "labels": {}, **small},
        "hdf5": {"source": {"kind": "hdf5", "path": str(folder / "samples.hdf5"), "images": "/x"}, "batch_size": 4},
        "npy": {"source": {"kind": "npy", "path": str(folder / "pixels.npy")}, "batch_size": 4},
        "lmdb": {"source": {"kind": "lmdb", "path": str(folder / "x.lmdb"), "images": "X"}, "batch_size": 4},
    }


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """What was seen while a daemon served streams of all kinds."""
    place, data = tmp_path_factory.mktemp("watched"), tmp_path_factory.mktemp("data")
    streams = write_data(data)
    (data / "cache").mkdir()
    daemon = DaemonProcess(place, {"monitor": "127.0.0.1:0", "streams": streams}, environment={})
    sockets = Path(daemon.endpoint.removeprefix("ipc://")).parent
    seen = watch_processes(place, place / "state", sockets, data / "cache")
    daemon._environment |= seen.environment
    with daemon:
        command = [sys.executable, str(HERE / "watched_trainer.py"), daemon.endpoint, *streams]
        done = subprocess.run(command, env=seen.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        told: dict[str, Any] = json.loads(done.stdout)
        address, token = told["url"].split("/#")
        for page in ("", "metrics", "healthz", "readyz"):
            fetch(f"{address}/{page}")
        fetch(f"{address}/thumbnails/folder/3", Authorization=f"Bearer {token}")
        workers = daemon.workers()
        exposed = daemon.log.read_bytes() + b"".join(
            Path(f"/proc/{pid}/{file}").read_bytes()
            for pid in (daemon.pid, *workers)
            for file in ("cmdline", "environ")
        )
        assert daemon.terminate() == 0
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), "its workers have ended")
    return Watched(seen, told["read"], token, len(workers), exposed)


@pytest.mark.long
def test_the_worker_that_draws_thumbnails_was_watched_too(watched: Watched) -> None:
    assert watched.watch.list_commands().count("-m streamd.worker ") > watched.pool_workers


@pytest.mark.long
def test_the_trainer_read_an_epoch_of_every_kind_of_source(watched: Watched) -> None:
    assert watched.read == {
        "folder": [24, True], "table": [8, True], "tar": [12, True],
        "hdf5": [20, True], "npy": [20, True], "lmdb": [20, True],
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        "-m streamd.cli.main serve", "-m streamd.daemon.streams.listing_process", "-m streamd.worker ",
        "watched_trainer.py ipc://",
    ],
)  # fmt: skip
def test_every_process_was_watched(watched: Watched, command: str) -> None:
    assert command in watched.watch.list_commands()


@pytest.mark.long
def test_no_process_unpickles_executes_data_starts_a_shell_or_writes_elsewhere(
    watched: Watched,
) -> None:
    assert watched.watch.find_faults() == []


@pytest.mark.long
def test_the_monitors_token_is_in_no_log_command_line_or_environment(watched: Watched) -> None:
    assert len(watched.token) >= 22  # 128 bits, as base64
    assert b"serve" in watched.exposed
    assert watched.token.encode() not in watched.exposed


FORBIDDEN: Final = {
    "pickle.find_class": "import pickle; pickle.loads(pickle.dumps(Path))",
    "marshal.loads": "import marshal; marshal.loads(marshal.dumps(1))",
    "compile": "compile('1', 'data', 'eval')",
    "exec": "exec(compiled)",
    "os.system": "os.system('true')",
    "os.exec": "os.execv('/nowhere', ['nowhere'])",
    "subprocess.Popen": "import subprocess; subprocess.run('true', shell=True)",
    "os.posix_spawn": "os.posix_spawn('/nowhere', ['nowhere'], {})",
    "ctypes.dlopen": "import ctypes; ctypes.CDLL('libnowhere.so')",
    "socket.connect": "import socket; socket.socket(type=socket.SOCK_DGRAM).connect(('192.0.2.1', 9))",
    "socket.getaddrinfo": "import socket; socket.getaddrinfo('192.0.2.1', 9)",
    "socket.bind": "import socket; socket.socket().bind(('0.0.0.0', 0))",
    "open": "os.close(os.open(elsewhere, os.O_WRONLY | os.O_CREAT))",
    "os.rename": "os.rename(inside / 'a', elsewhere.with_name('b'))",
    "os.remove": "os.remove(inside / 'link' / 'b')",
    "os.chmod": "os.chmod(elsewhere, 0o600)",
    "os.truncate": "os.truncate(inside / 'link' / 'elsewhere', 0)",
    "os.mkdir": "os.mkdir('here', dir_fd=os.open(elsewhere.parent, os.O_RDONLY))",
    "os.symlink": "os.symlink('/nowhere', elsewhere.with_name('c'))",
}

# None of these is a fault: the check would be worth nothing if it had to be switched off for them.
ALLOWED: Final = """
import collections, ctypes, dataclasses, json, socket, subprocess, sys
ctypes.CDLL(None)
(inside / "b").write_text("x")
(inside / "b").rename(inside / "c")
(inside / "link").unlink()
open("/dev/null", "w").close()
open(__file__ if "__file__" in vars() else sys.executable, "rb").close()
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
subprocess.run([sys.executable, "-P", "-m", "streamd.nothing"], stderr=subprocess.DEVNULL)
"""


def run_watched(place: Path, code: str) -> list[dict[str, Any]]:
    """What is seen of a program that may write to the folder `inside`, and not to the file `elsewhere`."""
    inside = place / "inside"
    inside.mkdir()
    (inside / "a").touch()
    (inside / "link").symlink_to(place)
    program = place / "program.py"
    names = f"inside, elsewhere = Path({str(inside)!r}), Path({str(place / 'elsewhere')!r})"
    program.write_text(f"import os\nfrom pathlib import Path\n{names}\n{code}\n")
    seen = watch_processes(place, inside)
    subprocess.run([sys.executable, str(program)], env=seen.environment, check=True, capture_output=True)
    assert "program.py" in seen.list_commands()
    return seen.find_faults()


def test_each_forbidden_act_is_seen(tmp_path: Path) -> None:
    acts = "\n".join(f"try:\n    {act}\nexcept OSError: pass" for act in FORBIDDEN.values())
    faults = run_watched(tmp_path, "class Compiled: pass\ncompiled = (lambda: None).__code__\n" + acts)

    assert FORBIDDEN.keys() == {fault["event"] for fault in faults}


def test_what_streamd_does_all_the_time_is_no_fault(tmp_path: Path) -> None:
    assert run_watched(tmp_path, ALLOWED) == []
