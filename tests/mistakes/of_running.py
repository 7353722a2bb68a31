"""Mistakes in starting the daemon, in reaching it, and in training on it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final

from mistake import GOOD, SERVE, TABLE, Mistake

from streamd.config.load import load_config
from streamd.daemon.streams.catalog import build_lock_paths, write_sample_manifests
from streamd.daemon.streams.manifest_locks import ManifestLock

TRAIN: Final = "streamd-train --stream train --epochs 1 --save model.keras"


def lock(place: Path) -> None:
    (place / "locked").mkdir(mode=0o500)


def no_folder(place: Path) -> None:
    (place / "state").touch()


def serve_already(place: Path) -> ManifestLock:
    """Holds the list as a daemon that serves it does."""
    config = load_config(place / "config.yaml")
    write_sample_manifests(config, place / "state", lambda *_: None)
    lock = ManifestLock(build_lock_paths(config, place / "state")["train"])
    assert lock.acquire_shared()
    return lock


while_serving = partial(Mistake, running=True)


def without(
    library: str, did: str, *, program: str = "streamd", user: str = "streamd", extra: str = "serve", **more: Any
) -> Mistake:
    """A library is not installed that `user`, a part of the program, needs."""
    says = f"{program}: {user} needs {library}, which is not installed: run  pip install 'streamd-loader[{extra}]'"
    return Mistake(did, says=says, do="Run the pip command.", without=library, **more)


OF_RUNNING: Final = (
    while_serving(
        "started a second daemon at the same endpoint",
        config="listen: ENDPOINT\n" + GOOD,
        says="streamd: another streamd is already listening on …: stop it, or choose another endpoint with `listen:`",
        do="Use the daemon that is already running, or choose another endpoint.",
    ),
    Mistake(
        "rescanned samples that another daemon is serving from the same state folder",
        command=SERVE + " --rescan",
        prepare=serve_already,
        unprivileged=True,
        says=(
            "streamd: config.yaml:2: streams.train: another streamd (pid …) is serving these samples from the lists "
            "in …/state, and would lose those lists: stop that streamd before the samples are listed again, or set "
            "STATE_DIRECTORY to another folder for this streamd"
        ),
        do="Stop the other daemon first, or set STATE_DIRECTORY to another folder for this one.",
    ),
    Mistake(
        "chose an endpoint in a folder that you cannot write to",
        config="listen: ipc://locked/s\n" + GOOD,
        prepare=lock,
        unprivileged=True,
        says=(
            "streamd: cannot listen on …/locked/s: Permission denied: …/locked/s.lock; choose another endpoint with "
            "`listen:`"
        ),
        do="Choose a folder of your own.",
    ),
    Mistake(
        "chose an endpoint whose folder is a file",
        config="listen: ipc://all.csv/s\n" + GOOD,
        says=("streamd: cannot listen on …/all.csv/s: File exists: …/all.csv; choose another endpoint with `listen:`"),
        do="Choose a folder of your own.",
    ),
    Mistake(
        "chose a folder as the endpoint",
        config="listen: ipc://data\n" + GOOD,
        says=(
            "streamd: cannot listen on …/data: it is a folder; give the path of a file in it, such as "
            "…/data/streamd.sock"
        ),
        do="Name a file in the folder.",
    ),
    Mistake(
        "had no folder to keep state in",
        prepare=no_folder,
        says=(
            "streamd: cannot keep state in …/state: File exists; set STATE_DIRECTORY to a folder that you can write to"
        ),
        do="Set STATE_DIRECTORY to a folder that you can write to.",
    ),
    without("pydantic", "installed streamd without the daemon's libraries"),
    without("typer", "installed streamd without its commands"),
    without("pyarrow", "read a table without the library for it", user="the table of stream 'train'", config=TABLE),
    without("simplejpeg", "decoded without the library for it", user="streamd serve"),
    without(
        "aiohttp",
        "asked for the dashboard without the library for it",
        user="the monitor",
        config="monitor: 127.0.0.1:0\n" + GOOD,
        command="streamd check --config config.yaml",
        status=1,
    ),
    without("zmq", "probed without the library for it", command="streamd probe train"),
    without(
        "keras",
        "trained without Keras",
        program="streamd-train",
        user="training with Keras",
        extra="train",
        command=TRAIN,
        running=True,
    ),
    Mistake(
        "started a trainer without a daemon",
        command=TRAIN,
        status=1,
        says=(
            "streamd-train: no streamd daemon at …/streamd.sock, …/streamd/streamd.sock, /run/streamd/streamd.sock: "
            "none of these sockets exists; start `streamd serve --config config.yaml`, or give the daemon's endpoint "
            "(--endpoint, $STREAMD_ENDPOINT)"
        ),
        do="Start the daemon.",
    ),
    Mistake(
        "named a socket that is not there",
        command="streamd probe train --endpoint /no/such/folder/streamd.sock",
        status=1,
        says=(
            "streamd: no streamd daemon at ipc:///no/such/folder/streamd.sock: there is no folder "
            "/no/such/folder; start `streamd serve --config config.yaml`, or give the daemon's endpoint "
            "(--endpoint, $STREAMD_ENDPOINT)"
        ),
        do="Start the daemon, or correct the endpoint.",
    ),
    Mistake(
        "took the dashboard's address for the endpoint",
        command="streamd probe train --endpoint http://127.0.0.1:9191",
        says=(
            "streamd: endpoint 'http://127.0.0.1:9191' is the address of a dashboard; trainers connect to the daemon's "
            "socket, as in ipc:///path/to/socket"
        ),
        do="Name the socket that `listen:` names, or leave --endpoint out.",
    ),
    Mistake(
        "named a relative endpoint",
        command="streamd probe train --endpoint ipc://streamd.sock",
        says=(
            "streamd: endpoint 'ipc://streamd.sock': write an absolute path after ipc://, as in "
            "ipc:///run/streamd/streamd.sock"
        ),
        do="Write the whole path.",
    ),
    while_serving(
        "named a stream that is not served",
        command="streamd probe trian",
        says=(
            "streamd: there is no stream 'trian'; the daemon serves: train, validation, drive, flat, large, "
            "broken, gone; did you mean 'train'?"
        ),
        do="Use the name that the message suggests.",
    ),
    while_serving(
        "made a batch that does not fit into memory",
        command="streamd probe large",
        says=(
            "draining 1 epoch of stream 'large' in 1 process\n"
            "streamd probe: stream 'large' does not fit into memory: one batch takes 48.0 MiB; 2 batches for "
            "the trainer, plus the batches that are being filled, take 144.0 MiB, but memory is limited to "
            "64.0 MiB: set memory to at least 145MiB, or make batch_size or image.size smaller\n"
            "streamd: a probing process failed; its message is above"
        ),
        do="Set memory as the message says, or make the batch smaller.",
    ),
    while_serving(
        "served files that are not images",
        command="streamd probe broken",
        status=1,
        says=(
            "draining 1 epoch of stream 'broken' in 1 process\nstreamd probe: … of 16 samples are bad, more than "
            "bad_samples.max_fraction 0.01 allows; the last of them is …: an HTML page, which was downloaded instead "
            "of the image: download it again; fix or remove them, or set a larger max_fraction; streamd check lists "
            "all of them\nstreamd: a probing process failed; its message is above"
        ),
        do="Replace the files. The daemon's log names each of them.",
    ),
    while_serving(
        "deleted images that the daemon serves",
        command="streamd probe gone",
        status=1,
        says=(
            "draining 1 epoch of stream 'gone' in 1 process\nstreamd probe: … of 40 samples are bad, more than "
            "bad_samples.max_fraction 0.01 allows; the last of them is …: No such file or directory; fix or remove "
            "them, or set a larger max_fraction; streamd check lists all of them\nstreamd: a probing process failed; "
            "its message is above"
        ),
        do="Restore the images, or list the samples again with `streamd serve --rescan`.",
    ),
    while_serving(
        "gave --load the name of a file instead of module:function",
        command="streamd probe train --load mystep.py",
        says=(
            "draining 1 epoch of stream 'train' in 1 process\n"
            "streamd probe: --load must be module:function, such as mytrainer:step, not 'mystep.py'\n"
            "streamd: a probing process failed; its message is above"
        ),
        do="Write the module without .py, then a colon and the function.",
    ),
    Mistake(
        "asked for zero epochs",
        command=TRAIN.replace("--epochs 1", "--epochs 0"),
        says=(
            "Usage: streamd-train [OPTIONS]\n"
            "Try 'streamd-train --help' for help.\n"
            "Error: Invalid value for '--epochs': Input should be greater than or equal to 1"
        ),
        do="Train for at least one epoch.",
    ),
    Mistake(
        "saved the model under a name without .keras",
        command=TRAIN.replace("model.keras", "model.h5"),
        says="streamd-train: the model is saved in Keras's own format: name a file ending in .keras, not model.h5",
        do="Name a file ending in .keras.",
    ),
    Mistake(
        "saved the model in a folder that is not there",
        command=TRAIN.replace("model.keras", "models/a.keras"),
        says=(
            "streamd-train: models/a.keras cannot be written: there is no folder models; create it, or choose "
            "another file"
        ),
        do="Make the folder.",
    ),
    while_serving(
        "trained on a stream that is not served",
        command=TRAIN.replace("stream train", "stream trian"),
        says=(
            "streamd-train: there is no stream 'trian'; the daemon serves: train, validation, drive, flat, "
            "large, broken, gone; did you mean 'train'?"
        ),
        do="Use the name that the message suggests.",
    ),
    while_serving(
        "validated on a stream that is not served",
        command=f"{TRAIN} --validation val",
        says=(
            "streamd-train: there is no stream 'val'; the daemon serves: train, validation, drive, flat, "
            "large, broken, gone"
        ),
        do="Use the name of a stream that the daemon serves.",
    ),
    while_serving(
        "trained on a label that the stream does not have",
        command=f"{TRAIN} --label angel",
        says=(
            "streamd-train: stream 'train' has no label 'angel'; its labels are: label (category); did you "
            "mean 'label'?"
        ),
        do="Use a label that the message lists.",
    ),
    while_serving(
        "did not say which of several labels to learn",
        command=TRAIN.replace("stream train", "stream drive"),
        says="streamd-train: stream 'drive' has the labels angle, throttle: choose one with --label",
        do="Name one with --label.",
    ),
    while_serving(
        "trained on images without labels",
        command=TRAIN.replace("stream train", "stream flat"),
        says=(
            "streamd-train: stream 'flat' has no labels, so there is nothing to learn from it; add labels to "
            "the stream, or choose another stream"
        ),
        do="Give the stream labels.",
    ),
    while_serving(
        "named a model's file that is not there",
        command=f"{TRAIN} --model mymodel:build",
        says=(
            "streamd-train: there is no module 'mymodel' in … or on Python's path; run the command in the "
            "folder of the module, or install it"
        ),
        do="Run the command in the folder that holds mymodel.py.",
    ),
    while_serving(
        "gave --model the name of a file instead of module:function",
        command=f"{TRAIN} --model mymodel.py",
        says="streamd-train: --model must be module:function, such as mymodel:build, not 'mymodel.py'",
        files={"mymodel.py": "def build(spec): ...\n"},
        do="Write module:function.",
    ),
    while_serving(
        "misspelled the model's function",
        command=f"{TRAIN} --model mymodel:biuld",
        says="streamd-train: module 'mymodel' has no function 'biuld'; did you mean 'build'?",
        files={"mymodel.py": "def build(spec): ...\n"},
        do="Use the function that the message suggests.",
    ),
    while_serving(
        "misspelled a callback",
        command=f"{TRAIN} --callback mycallbacks:patiense",
        says="streamd-train: module 'mycallbacks' has no function 'patiense'; did you mean 'patience'?",
        files={"mycallbacks.py": "def patience(spec): ...\n"},
        do="Use the function that the message suggests.",
    ),
    Mistake(
        "set the learning rate to zero",
        command=f"{TRAIN} --learning-rate 0",
        says="streamd-train: the learning rate must be a number above 0, such as 0.001, not 0.0",
        do="Give a rate above 0, or leave --learning-rate out to use the optimizer's own rate.",
    ),
    while_serving(
        "misspelled a stream in Python",
        command='client.subscribe("trian")',
        says=(
            "RefusedError: there is no stream 'trian'; the daemon serves: train, validation, drive, flat, "
            "large, broken, gone; did you mean 'train'?"
        ),
        do="Use the name that the message suggests.",
    ),
    while_serving(
        "counted ranks from one",
        command='client.subscribe("train", rank=2, world=2)',
        says="ConfigError: rank 2 of world 2 does not exist: ranks go from 0 to world - 1",
        do="Count ranks from 0.",
    ),
    while_serving(
        "started fewer processes than the script counts on",
        command='client.subscribe("train", rank="auto", world=2)',
        says=(
            'ConfigError: world=2 was given with rank="auto", but this process is in a world of 1 (no launcher '
            "has set its environment variables): leave world out, or start 2 processes"
        ),
        do="Start the script with torchrun, srun or mpirun, or leave `world` out.",
    ),
    while_serving(
        "had more ranks than batches",
        command='client.subscribe("train", rank=0, world=64)',
        says=(
            "RefusedError: world 64 is more than the 2 batches of an epoch: every step would be dropped; use fewer "
            'ranks, a smaller batch_size or uneven="pad"'
        ),
        do="Use fewer ranks, or smaller batches.",
    ),
    while_serving(
        "subscribed for zero epochs",
        command='client.subscribe("train", epochs=0)',
        says="ConfigError: epochs=0: write a whole number of at least 1, or None to run without end",
        do="Subscribe for one or more epochs, or for None, which runs without end.",
    ),
    while_serving(
        "wanted one batch at a time",
        command='client.subscribe("train", prefetch=1)',
        says="ConfigError: prefetch=1: write a whole number from 2 to 1024, or None for 16",
        do="The minimum is 2: one batch in training, and one on its way.",
    ),
    while_serving(
        "wrote a number as text",
        command='client.subscribe("train", batch_size="8")',
        says=(
            "ConfigError: batch_size='8': write a whole number of at least 1, or None for the stream's own batch_size"
        ),
        do="Write the number without quotes.",
    ),
    while_serving(
        "misspelled the transport",
        command='client.subscribe("train", transport="inlin")',
        says="ConfigError: transport='inlin': write \"shared\" or \"inline\"; did you mean 'inline'?",
        do="Use the word that the message suggests.",
    ),
    while_serving(
        "resumed with the token of another stream",
        command='client.subscribe("validation", resume=next(iter(client.subscribe("train"))).token)',
        says=(
            "TokenError: this token belongs to stream 'train', not to 'validation': resume 'train' with it, or "
            "subscribe without a token to start from the beginning"
        ),
        do="Resume the stream that the token belongs to.",
    ),
    while_serving(
        "resumed with a truncated token",
        command='client.subscribe("train", resume=next(iter(client.subscribe("train"))).token[:40])',
        says=(
            "TokenError: this is not a valid streamd token: Input data was truncated; use the complete token "
            "of an earlier checkpoint, or subscribe without a token to start from the beginning"
        ),
        do="Use the complete token of an earlier checkpoint.",
    ),
    while_serving(
        "resumed within a batch with another number of ranks",
        command=(
            'client.subscribe("train", world=2, resume=next(iter(client.subscribe("train", batch_size=4))).token)'
        ),
        says=(
            "TokenError: this token was saved within a batch, after 4 rows, with world=1: resume it with world=1; to "
            "resume with world=2, save a token at the end of a whole batch of 8"
        ),
        do="Save a token at the end of a whole batch before you change the number of ranks.",
    ),
)
