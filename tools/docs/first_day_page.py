"""Serves pictures that nobody here made, as docs/first-steps.md says, and writes docs/evidence/first-day.md.

    scripts/docs first-day [--keep FOLDER]

Each package is served with the configuration that a reader of docs/first-steps.md writes first. Where streamd refuses,
the remedy that its message names is applied and nothing else, and the next try counts.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "evidence" / "first-day.md"
STREAMD: Final = Path(sys.executable).with_name("streamd")
MOST_TRIES: Final = 4  # beyond it the messages do not lead anywhere
DOWNLOAD_S: Final = 600.0
COMMAND_S: Final = 300.0
FIRST_CONFIG: Final[dict[str, Any]] = {"image": {"size": [128, 128]}, "batch_size": 32}
# What streamd's messages say and what its reader then writes: the key, and the value in a group of its own.
REMEDIES: Final = (
    r"write (?P<key>labels): (?P<value>\{\})",
    r"(?P<key>bad_samples): (?P<value>\{max_fraction: [\d.]+\})",
)


@dataclass(frozen=True, slots=True)
class Package:
    """Where pictures come from: `folder` of the unpacked package is what is served."""

    name: str
    origin: str  # "PyPI" or "Debian"
    folder: str


PACKAGES: Final = (
    Package("openclipart-png", "Debian", "usr/share/openclipart/png"),
    Package("plasma-workspace-wallpapers", "Debian", "usr/share/wallpapers"),
    Package("oxygen-icon-theme", "Debian", "usr/share/icons/oxygen"),
    Package("thumbor", "PyPI", "*/tests/fixtures/images"),
    Package("sphinx", "PyPI", "*"),
    Package("pillow", "PyPI", "*/Tests/images"),
)


@dataclass(slots=True)
class Story:
    """What became of a package. `refusals` are the messages of the tries that failed, in their order."""

    package: Package
    missing: str | None = None
    refusals: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    checked: dict[str, Any] = field(default_factory=dict)  # what `streamd check --json` says of the stream
    names: Counter[str] = field(default_factory=Counter)
    samples_per_s: float | None = None

    @property
    def tries(self) -> str:
        return str(len(self.refusals) + 1) if self.samples_per_s is not None else "not served"


def fetch(package: Package, place: Path) -> str | None:
    """Downloads and unpacks into `place`; why not, if it cannot be done."""
    if package.origin == "PyPI":
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--no-binary", package.name, package.name]
    elif shutil.which("apt-get") and shutil.which("dpkg"):
        command = ["apt-get", "download", "--quiet", package.name]
    else:
        return "there is no apt-get here"
    archives = place / "archives"
    archives.mkdir(parents=True)
    done = subprocess.run(command, cwd=archives, timeout=DOWNLOAD_S, check=False)
    if done.returncode:
        return "it could not be downloaded"
    (archive,) = archives.iterdir()
    if package.origin == "PyPI":
        with tarfile.open(archive) as packed:
            packed.extractall(place, filter="data")
    else:
        unpack: list[str | Path] = ["dpkg", "-x", archive, place]
        subprocess.run(unpack, check=True)
    shutil.rmtree(archives)
    return None


@contextmanager
def served(config: Path, environment: Mapping[str, str]) -> Iterator[str | None]:
    """The daemon, until the block ends. Gives what it said when it refused to start, else None."""
    command: list[str | Path] = [STREAMD, "serve", "--config", config]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as daemon:
        assert daemon.stderr is not None
        said = []
        for line in daemon.stderr:
            said.append(line)
            if "daemon.ready" in line:
                break
        reader = threading.Thread(target=said.extend, args=(daemon.stderr,))  # a full pipe would hold the daemon up
        reader.start()
        try:
            yield None if "daemon.ready" in said[-1] else said[-1]
        finally:
            daemon.terminate()
            daemon.wait(COMMAND_S)
            reader.join()


def ask(environment: Mapping[str, str], *command: str | Path) -> tuple[dict[str, Any] | None, str]:
    """The JSON object that a command of streamd prints, if it does, and what it says on standard error."""
    done = subprocess.run(
        [STREAMD, *command, "--json"], capture_output=True, text=True, timeout=COMMAND_S, check=False, env=environment
    )
    start = done.stdout.find("{")
    return (json.loads(done.stdout[start:]) if start >= 0 else None), done.stderr


def tell(package: Package, root: Path, place: Path) -> Story:
    """Serves `root` until it works or no message leads on."""
    story = Story(package, names=peculiar_names(root))
    endpoint, config = f"ipc://{place}/s", place / "config.yaml"
    environment = os.environ | {"STATE_DIRECTORY": str(place / "state"), "STREAMD_ENDPOINT": endpoint}
    stream: dict[str, Any] = {"source": {"kind": "folder", "path": str(root)}, **FIRST_CONFIG}
    for _ in range(MOST_TRIES):
        config.write_text(json.dumps({"listen": endpoint, "streams": {"train": stream}}))
        refusal = attempt(story, config, environment)
        if refusal is None:
            return story
        story.refusals.append(refusal.replace(str(root), "…").replace(str(place), "…"))
        remedy = next(filter(None, (re.search(each, refusal) for each in REMEDIES)), None)
        if remedy is None or remedy["key"] in stream:
            return story
        story.changes.append(remedy[0].removeprefix("write "))
        stream[remedy["key"]] = yaml_value(remedy["value"])
    return story


def attempt(story: Story, config: Path, environment: Mapping[str, str]) -> str | None:
    """Serves once and drains two epochs; the message that says what is wrong, if anything is."""
    with served(config, environment) as refusal:
        if refusal is not None:
            return refusal
        probed, said = ask(environment, "probe", "train", "--epochs", "2", "--digest")
    found, _ = ask(environment, "check", "--config", config)
    if found is None:
        return said
    story.checked = found["streams"]["train"]
    if probed is None:  # the daemon's message sends to check, and check has the remedy
        return next((each for each in found["troubles"] if "would stop" in each), said)
    if not all(receipt["ok"] for receipt in probed["receipts"]):
        return "a receipt is not ok"
    story.samples_per_s = probed["samples_per_s"][0]
    return None


def yaml_value(text: str) -> dict[str, float]:
    """`{}` or `{key: number}`."""
    key, _, number = text.strip("{}").partition(": ")
    return {key: float(number)} if key else {}


def peculiar_names(root: Path) -> Counter[str]:
    """How many names below `root` are links, have spaces or letters beyond ASCII, and how deep folders go."""
    found: Counter[str] = Counter()
    for folder, _, files in os.walk(root):
        found["levels"] = max(found["levels"], len(Path(folder).relative_to(root).parts))
        for name in files:
            found["links"] += Path(folder, name).is_symlink()
            found["with spaces"] += " " in name
            found["beyond ASCII"] += not name.isascii()
    return found


def page(stories: list[Story]) -> Iterator[str]:
    """The lines of docs/evidence/first-day.md."""
    yield "# The first day with other people's pictures\n"
    yield (
        "Packages of pictures that nobody here made, each served with the configuration that a reader of\n"
        "[first-steps.md](../first-steps.md) writes first. Where streamd refuses, the remedy that its message names is "
        "applied,\n"
        "nothing else, and the next try counts. A package is served when `streamd probe train --epochs 2 --digest`\n"
        "ends with receipts that are ok.\n"
    )
    yield "`scripts/docs first-day` wrote this page. It needs a network, so no test of the repository runs it.\n"
    yield "| package | pictures | formats | names | bad | tries | samples/s |\n|---|---|---|---|---|---|---|"
    yield from map(row, stories)
    yield f"\nRates are of {os.cpu_count()} cores that others share; of a few batches, they say little.\n"
    yield "## What was refused, and what was bad"
    for story in stories:
        yield from details(story)


def row(story: Story) -> str:
    name = f"{story.package.name} ({story.package.origin})"
    if story.missing or not story.checked:
        return f"| {name} | | | | | {story.missing or story.tries} | |"
    formats = ", ".join(f"{each} {count:,}" for each, count in story.checked["pictures"]["formats"].items())
    names = ", ".join(f"{count:,} {what}" for what, count in story.names.items() if count)
    rate = "" if story.samples_per_s is None else f"{story.samples_per_s:,.0f}"
    bad = len(story.checked["unreadable"])
    return f"| {name} | {story.checked['samples']:,} | {formats} | {names} | {bad:,} | {story.tries} | {rate} |"


def details(story: Story) -> Iterator[str]:
    reasons = Counter(
        re.split(r"[:(]", each["reason"])[0].strip() for each in story.checked.get("unreadable", [])
    ).most_common()
    if story.refusals or reasons:
        yield f"\n**{story.package.name}**\n"
    for number, refusal in enumerate(story.refusals, 1):
        change = f" So it was: `{story.changes[number - 1]}`." if number <= len(story.changes) else ""
        yield f"- Try {number}: `{refusal.strip().splitlines()[-1]}`{change}"
    if reasons:
        yield "- Bad: " + "; ".join(f"{count} {reason}" for reason, count in reasons) + "."


def main() -> None:
    """Everything, into the page."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--keep", type=Path, help="keep the downloads in this folder for the next time")
    keep: Path | None = options.parse_args().keep
    stories = []
    with tempfile.TemporaryDirectory(prefix="streamd-first-") as scratch:
        for package in PACKAGES:
            print(f"first-day: {package.name}", file=sys.stderr)
            unpacked = (keep or Path(scratch)).resolve() / package.name
            missing = None if unpacked.exists() else fetch(package, unpacked)
            if missing:
                shutil.rmtree(unpacked, ignore_errors=True)  # a part of it, or nothing, came before it failed
                stories.append(Story(package, missing))
                continue
            place = Path(tempfile.mkdtemp(dir=scratch))
            stories.append(tell(package, next(unpacked.glob(package.folder)), place))
    PAGE.write_text("\n".join(page(stories)) + "\n")
    print(f"first-day: wrote {PAGE.relative_to(Path.cwd())}", file=sys.stderr)


if __name__ == "__main__":
    main()
