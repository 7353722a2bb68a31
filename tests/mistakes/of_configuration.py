"""Mistakes in config.yaml."""

from __future__ import annotations

from typing import Final

from mistake import GOOD, TABLE, Mistake, in_train

from streamd.ipc.key_files import KeyPair, format_key_file

DEEP: Final = f"ipc:///tmp/{'deep/' * 20}streamd.sock"
# Of nobody.
_KEYS: Final = KeyPair("=H3Q&=&1W#FT]ieQJ](UACw)f5T6Tet]{f[v{17I", "NGjDiBY2)3{uQC^+/k9J.Jid?VW*DJJ$BTrc@$6f")

OF_CONFIGURATION: Final = (
    Mistake(
        "expected the batches of another host, whose files differ",
        config=f'{GOOD}expect: {{train: {{order: "{"0" * 32}"}}}}\n',
        says=(
            f"streamd: config.yaml:6: expect.train.order: {'0' * 32} is expected, but the files, labels and settings "
            "of this host give …; use the list of the other hosts (streamd manifest export and import), and their "
            "batch_size, drop_remainder and shuffle, or correct expect; streamd check prints both identities"
        ),
        do=(
            "Copy the data again, or take the other host's list with `streamd manifest export` and `import`. If the "
            "hosts are to serve something new, write what `streamd check` prints."
        ),
    ),
    Mistake(
        "expected a stream that is not in the configuration",
        config=f'{GOOD}expect: {{trian: {{order: "{"0" * 32}"}}}}\n',
        says="streamd: config.yaml:6: expect.trian: there is no such stream; did you mean 'train'?",
        do="Name a stream of the configuration.",
    ),
    Mistake(
        "named a configuration that is not there",
        command="streamd serve --config confg.yaml",
        says=(
            "streamd: confg.yaml: there is no such file; give the path of your configuration (--config FILE), "
            "or let streamd write one for your images: streamd init PATH"
        ),
        do="Give the path of a file that exists, or let `streamd init` write one.",
    ),
    Mistake(
        "named the folder that the configuration is in",
        command="streamd serve --config data",
        says="streamd: data: is a folder; give the path of the configuration in it, such as data/config.yaml, or write "
        "one for a folder of images:  streamd init data",
        do="Name the file in the folder.",
    ),
    Mistake(
        "named an image instead of the configuration",
        command="streamd serve --config data/cat/0000.jpg",
        says="streamd: data/cat/0000.jpg: byte 0 is not text; give the path of the configuration",
        do="Name the configuration, a text file.",
    ),
    Mistake(
        "left the configuration empty",
        config="",
        says=(
            "streamd: config.yaml:1: is empty; write at least streams: {train: {source: {kind: folder, path: "
            "data/train}, image: {size: [128, 128]}}}"
        ),
        do="Write at least what the message shows.",
    ),
    Mistake(
        "indented with a tab",
        config="streams:\n\ttrain: {source: {kind: folder, path: data}}\n",
        says="streamd: config.yaml:2:1: not valid YAML: there is a tab here; indent with spaces",
        do="Indent with spaces, two for each level.",
    ),
    Mistake(
        "indented a key differently from the keys next to it",
        config=GOOD.replace("    batch_size", "   batch_size"),
        says=(
            "streamd: config.yaml:5:4: not valid YAML: this line is not indented like the lines above and "
            "below it; give all of them the same number of spaces"
        ),
        do="Give keys that belong together the same number of spaces.",
    ),
    Mistake(
        "forgot a closing brace",
        config=GOOD.replace("path: data}", "path: data"),
        says=(
            "streamd: config.yaml:4:10: not valid YAML: a comma is missing before this point, or the bracket "
            "opened on line 3 is not closed; add the comma, or close the bracket"
        ),
        do="Add the closing bracket. The message says on which line it was opened, here line 3.",
    ),
    Mistake(
        "forgot the space after a colon",
        config=GOOD.replace("batch_size: 4", "batch_size:4"),
        says=("streamd: config.yaml:6:1: not valid YAML: the key on line 5 must be followed by a colon and a space"),
        do="Put a space after the colon of each key.",
    ),
    Mistake(
        "copied a path with backslashes",
        config=GOOD.replace("path: data", r'path: "C:\data"'),
        says=(
            "streamd: config.yaml:3:38: not valid YAML: there is a backslash inside double quotes; write paths "
            "with /, or use single quotes"
        ),
        do="Write paths with slashes.",
    ),
    Mistake(
        "wrote the stream at the top level",
        config="train:\n  source: {kind: folder, path: data}\n",
        says="streamd: config.yaml:1: train: unknown key; it looks like a stream: write it under streams",
        do="Write streams: first, and the stream under it, indented.",
    ),
    in_train(
        "did not indent the keys of source",
        says=(
            "3: source: found nothing (null); indent the keys of source under it, or write source: {kind: "
            "folder, path: data/train}\n"
            "4: kind: is a key of source: write it as source: {kind: ...}\n"
            "5: path: is a key of source: write it as source: {path: ...}"
        ),
        do="Indent the keys `kind` and `path` further than `source`, or use braces.",
        config=GOOD.replace("source: {kind: folder, path: data}", "source:\n    kind: folder\n    path: data"),
    ),
    in_train(
        "misspelled a key",
        config=GOOD.replace("batch_size", "batchsize"),
        says="5: batchsize: unknown key; did you mean 'batch_size'?",
        do="Use the key that the message suggests.",
    ),
    in_train(
        "made two mistakes",
        says=(
            "5: batch_size: found 0; use a whole number from 1 to 65536\n"
            "6: shufle: unknown key; did you mean 'shuffle'?"
        ),
        do="Fix them all. Each has its own line in the message.",
        config=GOOD.replace("batch_size: 4", "batch_size: 0\n    shufle: none"),
    ),
    in_train(
        "wrote a key twice",
        config=GOOD + "    batch_size: 8\n",
        says="6: batch_size: is written twice, first on line 5; keep one",
        do="Keep one of the two lines.",
    ),
    Mistake(
        "wrote a stream's key at the top level",
        config="batch_size: 8\n" + GOOD,
        says="streamd: config.yaml:1: batch_size: is a key of a stream: write it under streams.NAME",
        do="Move the key into the stream.",
    ),
    in_train(
        "wrote a key next to its parent instead of inside it",
        config=GOOD + "    seed: 3\n",
        says="6: seed: is a key of shuffle: write it as shuffle: {seed: ...}",
        do="Write it as the message shows.",
    ),
    in_train(
        "wrote a key of the trainer",
        config=GOOD + "    epochs: 10\n",
        says="6: epochs: unknown key; set it in the trainer: streamd-train --epochs N, or subscribe(epochs=N)",
        do="Remove it from the file, and set it in the trainer.",
    ),
    in_train(
        "left the size of the images out",
        config=GOOD.replace("size: [32, 32]", ""),
        says="4: image.size: is missing; a folder can hold images of any size: add size: [height, width]",
        do="Add the size that the network takes.",
    ),
    in_train(
        "gave the size as one number",
        config=GOOD.replace("[32, 32]", "32"),
        says="4: image.size: found 32; use [height, width], each from 1 to 16384 pixels; did you mean [32, 32]?",
        do="Write [height, width], height first.",
    ),
    in_train(
        "gave the size as text",
        config=GOOD.replace("[32, 32]", "128x96"),
        says="4: image.size: found '128x96'; use [height, width], each from 1 to 16384 pixels; did you mean [128, 96]?",
        do="Write [height, width], height first.",
    ),
    in_train(
        "misspelled a value",
        config=GOOD.replace("[32, 32]", "[32, 32], resize: strech"),
        says="4: image.resize: found 'strech'; use stretch, crop, pad or random_crop; did you mean 'stretch'?",
        do="Use one of the values that the message lists.",
    ),
    in_train(
        "asked for raw numbers without their channels",
        config=GOOD.replace("[32, 32]", "[32, 32], mode: raw, dtype: uint16"),
        says="4: image.channels: is missing; mode raw needs the number of channels that the files have",
        do="Add channels: N, as many as each file has: 1 for grey, 4 for RGB with infrared.",
    ),
    in_train(
        "asked for 16 bits in a mode of pixels",
        config=GOOD.replace("[32, 32]", "[32, 32], dtype: uint16"),
        says="4: image.dtype: pixels of mode RGB are uint8; remove it, or use mode: index or raw",
        do="Write mode: raw and channels, if the numbers are to be served as they are stored.",
    ),
    in_train(
        "used another tool's word for greyscale",
        config=GOOD.replace("[32, 32]", "[32, 32], mode: gray"),
        says="4: image.mode: found 'gray'; use RGB, L, RGBA, index or raw; did you mean 'L'?",
        do="Use one of the values that the message lists.",
    ),
    in_train(
        "put a number in quotes",
        config=GOOD.replace("batch_size: 4", 'batch_size: "32"'),
        says="5: batch_size: found '32'; use a whole number from 1 to 65536; did you mean 32, without quotes?",
        do="Leave the quotes out.",
    ),
    in_train(
        "wrote false for no shuffling",
        config=GOOD + "    shuffle: false\n",
        says="6: shuffle: found false; use full, none, chunk or {kind: full, seed: 0}; did you mean 'none'?",
        do="Write shuffle: none.",
    ),
    in_train(
        "gave a mean and std for pixels from 0 to 1",
        says=(
            "7: normalize.mean: found [0.485, 0.456, 0.406], which is for pixels from 0 to 1; pixels here are "
            "from 0 to 255: write normalize: imagenet, or [123.675, 116.28, 103.53]\n"
            "8: normalize.std: found [0.229, 0.224, 0.225], which is for pixels from 0 to 1; pixels here are "
            "from 0 to 255: write normalize: imagenet, or [58.395, 57.12, 57.375]"
        ),
        do="Use the name `imagenet`, or the numbers that the message gives.",
        config=GOOD + "    normalize:\n      mean: [0.485, 0.456, 0.406]\n      std: [0.229, 0.224, 0.225]\n",
    ),
    in_train(
        "kept random crops in a cache",
        config=GOOD.replace("[32, 32]", "[32, 32], resize: random_crop") + "    cache: {path: cache}\n",
        says="6: cache: would keep one random crop of each sample forever; remove it, or use resize: crop",
        do="Remove the cache. Then every epoch gets different crops.",
    ),
    in_train(
        "gave means of three channels to greyscale images",
        says=(
            "6: normalize.mean: has 3 numbers, but mode L has 1 channel; give one number for each channel\n"
            "6: normalize.std: has 3 numbers, but mode L has 1 channel; give one number for each channel"
        ),
        do="Give one number, or use mode: RGB.",
        config=GOOD.replace("[32, 32]", "[32, 32], mode: L")
        + "    normalize: {mean: [124, 116, 104], std: [58, 57, 57]}\n",
    ),
    in_train(
        "used another tool's word for the type of a label",
        config=TABLE.replace("float", "regression"),
        says=(
            "4: labels.angle.type: found 'regression'; use category, int, float, string, tags, boxes or points; did "
            "you mean 'float'?"
        ),
        do="Use one of the types that the message lists.",
    ),
    in_train(
        "listed true and false as classes",
        says=(
            "6: labels.label.classes: found [true, false]; use a list of names or whole numbers, such as [cat, dog]; "
            "put true and false in quotes"
        ),
        do="Put them in quotes.",
        config=GOOD + "    labels: {label: {type: category, classes: [true, false]}}\n",
    ),
    in_train(
        "gave the split as a number",
        config=GOOD + "    split: 0.2\n",
        says="6: split: found 0.2; keys are needed, as in split: {validation: 0.2}",
        do="Write it as the message shows.",
    ),
    in_train(
        "gave the fraction as a percentage",
        config=GOOD + "    split: {validation: 20}\n",
        says="6: split.validation: found 20; use a number above 0, up to 1; did you mean 0.2?",
        do="Write the fraction as a number between 0 and 1, such as 0.2.",
    ),
    in_train(
        "ran the check while the configuration had a mistake",
        status=1,
        command="streamd check --config config.yaml",
        says="4: image.size: found [32]; use [height, width], each from 1 to 16384 pixels; did you mean [32, 32]?",
        config=GOOD.replace("[32, 32]", "[32]"),
        do="Fix the mistake. Every command reports it in the same way.",
    ),
    Mistake(
        "copied a stream that does not exist",
        config=GOOD + "  validation: {like: trian, shuffle: none}\n",
        says=(
            "streamd: config.yaml:6: streams.validation.like: found 'trian', which is not a stream in this "
            "file; did you mean 'train'?"
        ),
        do="Use the name that the message suggests.",
    ),
    Mistake(
        "let two streams copy each other",
        config="streams:\n  a: {like: b}\n  b: {like: a}\n",
        says=(
            "streamd: config.yaml:2: streams.a.like: copies itself in a circle: a -> b -> a; remove like: from one of "
            "these streams"
        ),
        do="Write one of the two streams in full, without `like`.",
    ),
    in_train(
        "called a table's kind csv",
        config=TABLE.replace("kind: table", "kind: csv"),
        says=(
            "3: source: kind: found 'csv'; use folder, table, filelist, hdf5, lmdb, npy, tar, coco or yolo; did "
            "you mean 'table'?"
        ),
        do="Write kind: table, for CSV, TSV and Parquet.",
    ),
    in_train(
        "used a key for tables with a folder",
        config=GOOD.replace("path: data", "path: data, root: data"),
        says=(
            "3: source.root: belongs to kind table, filelist or coco, but kind is folder; remove it, or change the kind"
        ),
        do="Leave the key out.",
    ),
    Mistake(
        "wrote the memory in another tool's units",
        config="memory: 2G\n" + GOOD,
        says=(
            "streamd: config.yaml:1: memory: found '2G', which is not a size; write a size such as 512MiB, "
            "1.5GiB or 20GB, or a whole number of bytes; did you mean 2GiB?"
        ),
        do="Write 2GiB or 2GB.",
    ),
    Mistake(
        "named a path as the endpoint",
        config="listen: /run/streamd.sock\n" + GOOD,
        says=(
            "streamd: config.yaml:1: listen: found '/run/streamd.sock'; an endpoint is ipc:///path/to/socket; "
            "did you mean 'ipc:///run/streamd.sock'?"
        ),
        do="Put ipc:// before it.",
    ),
    Mistake(
        "chose an endpoint that is too long",
        config=f"listen: {DEEP}\n" + GOOD,
        says=(
            f"streamd: config.yaml:1: listen: endpoint '{DEEP}': a socket's path can have at most 104 bytes, "
            "but this one has 117: choose a shorter one"
        ),
        do="Choose a shorter path: the operating system does not allow longer ones.",
    ),
    Mistake(
        "opened a port to the network",
        config="listen: tcp://0.0.0.0:5555\n" + GOOD,
        says=(
            "streamd: config.yaml:1: listen: tcp://0.0.0.0:5555 is open to the network and needs keys: run  streamd "
            "keygen keys/daemon  and write  curve: {secret: keys/daemon/daemon.key_secret, clients: keys/clients}  or "
            "use ipc:///path/to/socket"
        ),
        do="Make keys, as docs/remote.md shows; or use an ipc:// endpoint for trainers on the same host alone.",
    ),
    Mistake(
        "let other users read the daemon's secret key",
        config="listen: tcp://127.0.0.1:0\ncurve: {secret: daemon.key_secret, clients: keys}\n" + GOOD,
        files={
            "daemon.key_secret": format_key_file(_KEYS, is_secret=True),
            "keys/me.key": format_key_file(_KEYS, is_secret=False),
        },
        prepare=lambda folder: (folder / "daemon.key_secret").chmod(0o644),
        says=(
            "streamd: config.yaml:2: curve.secret: other users can read or write …/daemon.key_secret, whose mode is "
            "0644: run  chmod 600 …/daemon.key_secret  and make a new pair of keys if somebody may have read this one"
        ),
        do="Run the command of the message. A secret key is for the daemon's user alone.",
    ),
    Mistake(
        "gave the metrics another machine's address",
        config="monitor: 192.0.2.1:9191\n" + GOOD,
        says=(
            "streamd: config.yaml:1: monitor: cannot listen on 192.0.2.1:9191: Cannot assign requested "
            "address; choose another address:port, or leave monitor out"
        ),
        do="Use an address of this machine: 127.0.0.1, or 0.0.0.0 for all of its addresses.",
    ),
)
