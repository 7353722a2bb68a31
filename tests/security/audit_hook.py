"""Watches a Python process for what streamd never does, and writes what it sees to the file $AUDIT_LOG.

A sitecustomize of the tests calls `watch_process` before anything else is imported; a hook cannot be removed, so it is
for processes that a test starts. $AUDIT_WRITABLE has the folders in which files may be written. What C code does by
itself, such as ZeroMQ's connections, raises no audit event and is not seen.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Final

# Modules that write code of their own and execute it while a module is imported, each with what that code is. It comes
# from files that are imported, never from data.
_GENERATORS_AT_IMPORT: Final[Mapping[str, str]] = {
    "attr._make": "aiohttp's classes: __init__, __eq__ and the like",
    "collections": "the __new__ of named tuples",
    "cv2.load_config_py3": "OpenCV's own configuration, a file of its package",
    "dataclasses": "__init__, __eq__ and the like",
    "prometheus_client.decorator": "wrappers with the signature of what they wrap",
    "typing": "annotations, which are texts in modules with `from __future__ import annotations`",
    "typing_inspection.typing_objects": "functions that recognise a type",
}

# The same, at any time.
_GENERATORS: Final[Mapping[str, str]] = {
    "ast": "nothing is executed: literals in the headers of .npy files, and the parameters of functions",
    "inspect": "annotations of the commands' functions, for typer",
    "typing": "annotations of the commands' functions, for typer",
}

# What executes modules; its code is that of their files.
_IMPORTERS: Final = ("<frozen importlib", "<frozen runpy", "<frozen zipimport")

# Programs of others.
_PROGRAMS: Final[Mapping[tuple[str, ...], str]] = {
    ("uname", "-p"): "`platform.processor` of the standard library, called by a library while it is imported",
}

# Libraries that ctypes opens; None is the process itself, for calls of the system that Python does not wrap.
_LIBRARIES: Final[Mapping[str | None, str]] = {None: "openat2, mmap and prctl"}

# Files elsewhere that may be written.
_OTHER_FILES: Final[Mapping[str, str]] = {"/dev/null": "discards what is written"}

_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_LOOPBACK: Final = ("127.", "::1", "localhost")
_STACK_FRAMES: Final = 12

_LOG: Final = os.path.realpath(os.environ["AUDIT_LOG"])
_WRITABLE: Final = (
    _LOG,
    f"/proc/{os.getpid()}/oom_score_adj",  # workers and listings are the first to end where memory runs out
    *map(os.path.realpath, os.environ["AUDIT_WRITABLE"].split(os.pathsep)),
)


def _find_caller() -> FrameType | None:
    """The innermost frame of the watched program."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame


def _refuse(*args: Any) -> str:
    return f"never: {args!r:.200}"


def _check_code(*args: Any) -> str:
    """Only imports and the named generators of code compile, execute, or read compiled code."""
    caller = _find_caller()
    if caller is None or caller.f_code.co_filename.startswith(_IMPORTERS):
        return ""
    module = caller.f_globals.get("__name__", "?")
    if module in _GENERATORS or (module in _GENERATORS_AT_IMPORT and _is_in_an_import(caller)):
        return ""
    return f"by {module}: {args!r:.200}"


def _is_in_an_import(frame: FrameType | None) -> bool:
    while frame is not None and not frame.f_code.co_filename.startswith(_IMPORTERS[0]):
        frame = frame.f_back
    return frame is not None


def _check_library(name: Any, *_: Any) -> str:
    return "" if name in _LIBRARIES else f"{name!r}"


def _check_program(executable: Any, arguments: Any, *_: Any) -> str:
    """Only modules of streamd are started, by this very Python; -P: none of them comes from the working directory."""
    words = [os.fsdecode(each) for each in arguments] if isinstance(arguments, list | tuple) else [str(arguments)]
    is_ours = words[:3] == [sys.executable, "-P", "-m"] and words[3].startswith("streamd.")
    return "" if is_ours or tuple(words) in _PROGRAMS else f"{executable!r} {words}"


def _check_address(connection: socket.socket, address: Any, *_: Any) -> str:
    if connection.family == socket.AF_UNIX or address is None:
        return ""
    return _check_host(address[0] if isinstance(address, tuple) else address)


def _check_host(host: Any, *_: Any) -> str:
    text = os.fsdecode(host) if isinstance(host, str | bytes) else repr(host)
    return "" if host is None or text.startswith(_LOOPBACK) else f"{text}"


def _check_open(path: Any, _mode: Any, flags: int) -> str:
    return _check_path(path) if flags & _WRITES else ""


def _check_path(path: Any, folder: int = -1) -> str:
    """Whether a path, if relative, in the folder of a descriptor, may be written."""
    if isinstance(path, int):
        return ""  # a descriptor: what opened it was checked
    return _check_real_path(os.path.realpath(_join_folder(path, folder)))


def _check_entry(path: Any, folder: int = -1) -> str:
    """The same for an entry of a folder: a link is changed itself, and not followed."""
    place, name = os.path.split(_join_folder(path, folder))
    return _check_real_path(f"{os.path.realpath(place)}/{name}")


def _join_folder(path: Any, folder: int) -> str:
    base = "" if folder < 0 else f"/proc/self/fd/{folder}"
    return os.path.join(base, os.fsdecode(path))  # noqa: PTH118 - pathlib would be imported


def _check_real_path(real: str) -> str:
    caller = _find_caller()
    if caller is not None and caller.f_code.co_filename.startswith(_IMPORTERS):
        return ""  # the bytecode of a module that is imported for the first time
    if real in _OTHER_FILES or any(real == place or real.startswith(f"{place}/") for place in _WRITABLE):
        return ""
    return real


def _check_rename(source: Any, target: Any, source_folder: int = -1, target_folder: int = -1) -> str:
    return _check_entry(source, source_folder) or _check_entry(target, target_folder)


_CHECKS: Final[Mapping[str, Callable[..., str]]] = {
    **dict.fromkeys(("pickle.find_class", "os.system", "os.exec", "os.spawn", "pty.spawn", "urllib.Request"), _refuse),
    **dict.fromkeys(("exec", "compile", "marshal.loads", "marshal.load"), _check_code),
    "ctypes.dlopen": _check_library,
    **dict.fromkeys(("subprocess.Popen", "os.posix_spawn"), _check_program),
    **dict.fromkeys(("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg"), _check_address),
    **dict.fromkeys(("socket.getaddrinfo", "socket.gethostbyname"), _check_host),
    "open": _check_open,
    "os.truncate": lambda path, _size: _check_path(path),
    "os.chmod": lambda path, _mode, folder=-1: _check_path(path, folder),
    "os.chown": lambda path, _user, _group, folder=-1: _check_path(path, folder),
    "os.utime": lambda path, _times, _ns, folder=-1: _check_path(path, folder),
    "os.mkdir": lambda path, _mode, folder=-1: _check_entry(path, folder),
    **dict.fromkeys(("os.remove", "os.rmdir"), _check_entry),
    **dict.fromkeys(("os.rename", "os.link"), _check_rename),
    "os.symlink": lambda _target, link, folder=-1: _check_entry(link, folder),
}


def _watch(event: str, args: tuple[Any, ...]) -> None:
    check = _CHECKS.get(event)
    if check is not None and (fault := check(*args)):
        _write_record({"event": event, "fault": fault, "stack": _describe_stack()})


def _describe_stack() -> list[str]:
    frame, stack = _find_caller(), list[str]()
    while frame is not None and len(stack) < _STACK_FRAMES:
        stack.append(f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return stack


def _write_record(record: dict[str, Any]) -> None:
    line = json.dumps({"pid": os.getpid(), "command": sys.orig_argv[1:], **record}) + "\n"
    descriptor = os.open(_LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def watch_process() -> None:
    """Begins to watch this process, for as long as it lives, and records that it does."""
    _write_record({"event": "watched"})
    sys.addaudithook(_watch)
