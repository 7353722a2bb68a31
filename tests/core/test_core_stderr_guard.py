"""Nobody waits for a reader of stderr that has stopped, and what it did not read is counted where it is missing."""

from __future__ import annotations

import fcntl
import os
import pty
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator

import pytest
from support.daemon_process import wait_until

from streamd.core.stderr_guard import ChildOutput, StderrWriter
from streamd.limits import LOG_UNWRITTEN_BYTES

LINE_BYTES = 100
LINES = 3 * LOG_UNWRITTEN_BYTES // LINE_BYTES  # three times as many as are kept


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A reader's end, and the end that stands for stderr."""
    source, target = os.pipe()
    fcntl.fcntl(source, fcntl.F_SETPIPE_SZ, 4096)
    yield source, target
    for each in (source, target):
        os.close(each)


def numbered(number: int) -> bytes:
    return f"{number:0{LINE_BYTES - 1}}\n".encode()


def read_until(source: int, is_enough: Callable[[bytes], bool]) -> list[bytes]:
    said = b""
    while not is_enough(said):
        said += os.read(source, 1 << 16)
    return said.splitlines(keepends=True)


def count_lost(notice: bytes) -> int:
    return int(notice.split()[1].replace(b",", b""))


def read_gap(lines: list[bytes]) -> tuple[int, int, int]:
    """How many numbered lines came before the notice, how many it counts, and the number of the line after it."""
    place = next(place for place, line in enumerate(lines) if b"not written" in line)
    assert lines[:place] == [numbered(number) for number in range(place)]
    return place, count_lost(lines[place]), int(lines[place + 1])


def test_a_full_pipe_keeps_no_writer_waiting_and_the_lines_that_are_lost_are_counted_in_their_place(
    pipe: tuple[int, int],
) -> None:
    source, target = pipe
    writer = StderrWriter(target)
    for number in range(LINES):
        writer.write(numbered(number))
    said = read_until(source, lambda said: said.endswith(b"nothing read them\n"))
    writer.write(numbered(LINES))
    before, lost, after = read_gap(said + read_until(source, lambda said: said.endswith(b"\n")))
    assert LOG_UNWRITTEN_BYTES // LINE_BYTES <= before < LINES
    assert (before + lost, after) == (LINES, LINES)
    writer.close()


def test_a_writer_whose_reader_has_stopped_is_closed_in_time_and_its_thread_keeps_nobody(pipe: tuple[int, int]) -> None:
    source, target = pipe
    writer = StderrWriter(target)
    for number in range(1000):
        writer.write(numbered(number))
    writer.close(patience_s=0.05)
    writer.write(numbered(1000))  # the last words of a process, which are lost
    thread = next(each for each in threading.enumerate() if each.name == "stderr-writer")
    assert thread.daemon
    read_until(source, lambda said: said.endswith(b"1 line was not written, since nothing read them\n"))
    thread.join()


def test_what_is_written_after_the_end_comes_while_there_is_a_reader(pipe: tuple[int, int]) -> None:
    source, target = pipe
    writer = StderrWriter(target)
    writer.write(b"first\n")
    writer.close()
    assert os.read(source, 100) == b"first\n"
    writer.write(b"last\n")
    assert os.read(source, 100) == b"last\n"


def test_a_reader_that_is_gone_ends_nothing_and_one_that_comes_later_hears_what_is_missing() -> None:
    source, target = os.pipe()
    writer = StderrWriter(target)
    os.close(source)
    for number in range(3):
        writer.write(numbered(number))
    wait_until(lambda: writer._lost_lines == 3, "the lines are counted")
    source, other = os.pipe()
    os.dup2(other, target)
    writer.write(numbered(3))
    writer.close()
    before, lost, after = read_gap(os.read(source, 1 << 16).splitlines(keepends=True))
    assert (before, lost, after) == (0, 3, 3)
    for each in (source, other, target):
        os.close(each)


def test_a_descriptor_that_somebody_made_non_blocking_loses_nothing(pipe: tuple[int, int]) -> None:
    source, target = pipe
    os.set_blocking(target, False)
    writer = StderrWriter(target)
    for number in range(1000):
        writer.write(numbered(number))
    assert read_until(source, lambda said: len(said) == 1000 * LINE_BYTES) == [numbered(each) for each in range(1000)]
    writer.close()
    assert not os.get_blocking(target)


def test_what_a_child_writes_never_waits_and_its_lines_stay_whole(pipe: tuple[int, int]) -> None:
    source, target = pipe
    writer = StderrWriter(target)
    children = ChildOutput(writer)
    program = (
        f"import os\nfor n in range({LINES}): os.write(2, b'%0{LINE_BYTES - 1}d\\n' % n)\nos.write(2, b'last words')"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, stderr=children.descriptor).returncode == 0
    children.close()
    said = read_until(source, lambda said: said.endswith(b"nothing read them\n"))
    place = len(said) - 1
    assert said[:place] == [numbered(number) for number in range(place)]
    assert place + count_lost(said[place]) == LINES + 1
    writer.close()


GUARDED = """
import logging, os, subprocess, sys, warnings
from streamd.core import log
from streamd.core.stderr_guard import child_stderr
log.configure_logging()
child = "import os, sys\\nfor _ in range(50000): os.write(2, b'native\\\\n')"
for number in range(20000):
    log.error("stream.stopped", "said", number=number)
    if number % 1000 == 0:
        print("printed", file=sys.stderr)
        logging.getLogger("a.library").warning("said by a library")
        warnings.warn(f"warned {number}")
subprocess.run([sys.executable, "-c", child], stderr=child_stderr(), check=True)
print("goes on", flush=True)
if sys.argv[1] == "fork" and not os.fork():
    print("goes on in a child", flush=True)
    os._exit(0)
if sys.argv[1] == "raise":
    raise ValueError("last words")
"""


@pytest.mark.parametrize(
    ("ending", "status"),
    [("return", 0), *(pytest.param(*each, marks=pytest.mark.long) for each in [("raise", 1), ("fork", 0)])],
)
def test_a_process_whose_stderr_is_a_full_pipe_goes_on_and_ends(
    pipe: tuple[int, int], ending: str, status: int
) -> None:
    _, target = pipe
    command = [sys.executable, "-c", GUARDED, ending]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=target, timeout=50)
    assert done.returncode == status
    assert done.stdout.startswith(b"goes on\n")


@pytest.mark.long
def test_a_process_whose_terminal_was_stopped_goes_on_and_ends() -> None:
    ours, terminal = pty.openpty()
    os.write(ours, b"\x13")  # Ctrl-S
    wait_until(lambda: bool(termios.tcgetattr(terminal)[0] & termios.IXON), "the terminal knows Ctrl-S")
    command = [sys.executable, "-c", GUARDED, "return"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal) as process:
        os.close(terminal)
        assert process.stdout is not None
        assert process.stdout.read() == b"goes on\n"
        assert process.wait(10) == 0
    os.close(ours)


def test_the_last_words_of_a_sound_log_are_all_there_in_order() -> None:
    program = """
import os, subprocess, sys
from streamd.core import log
from streamd.core.stderr_guard import child_stderr
log.configure_logging(as_json=True)
for number in range(60): log.notice("a.b", str(number))
subprocess.run([sys.executable, "-c", "import sys; sys.stderr.write('child')"], stderr=child_stderr(), check=True)
raise ValueError("why")
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, stderr=subprocess.PIPE, text=True)
    lines = done.stderr.splitlines()
    assert [f'"message": "{number}"' in line for number, line in enumerate(lines[:50])] == 50 * [True]
    assert lines[50] == "Traceback (most recent call last):"
    assert {"ValueError: why", "child"} <= set(lines)
    assert '"event": "log.held"' in lines[-1]
    assert done.returncode == 1
