"""Mistakes in boxes and points: in tables, COCO files and YOLO data sets."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, Final

from mistake import Mistake, in_train

Files = dict[str, str | bytes | None]

_STREAM: Final = """\
streams:
  train:
    source: {source}
    labels: {{boxes: {{type: boxes, max: 2{keys}}}}}
    image: {{size: [32, 32]}}
    batch_size: 4
"""
TABLE: Final = "{kind: table, path: boxes.csv, image: path, root: data}"
COCO: Final = "{kind: coco, path: instances.json, root: data}"
YOLO: Final = "{kind: yolo, path: data.yaml, part: train}"


def config(source: str, keys: str = "") -> str:
    return _STREAM.format(source=source, keys=keys)


def cells(*given: str) -> Files:
    """boxes.csv with these cells, in quotes."""
    rows = [f'cat/000{number}.jpg,"{cell}"\n' for number, cell in enumerate(given)]
    return {"boxes.csv": "".join(["path,boxes\n", *rows])}


def coco(picture: dict[str, Any] | None = None, **annotation: Any) -> Files:
    """instances.json with one annotation."""
    whole = {"id": 7, "image_id": 1, "category_id": 3, "bbox": [1, 2, 30, 40], **annotation}
    images, categories = [{"id": 1, "file_name": "cat/0000.jpg", **(picture or {})}], [{"id": 3, "name": "cat"}]
    return {"instances.json": json.dumps({"images": images, "categories": categories, "annotations": [whole]})}


def yolo(line: str, yaml: str = "train: images\nnames: [cat, dog]\n") -> Files:
    """A YOLO data set of one picture with one line of labels."""
    return {"data.yaml": yaml, "images/0.jpg": b"x", "labels/0.txt": line}


in_table = partial(in_train, config=config(TABLE))
in_coco = partial(in_train, config=config(COCO))
in_yolo = partial(in_train, config=config(YOLO))

OF_BOXES: Final[tuple[Mistake, ...]] = (
    in_table(
        "did not say how many boxes a sample may have",
        config=config(TABLE).replace(", max: 2", ""),
        says="4: labels.boxes.max: is missing; a label of type boxes needs the most that a sample may have: max: 100",
        do="Add `max`: every row of a batch has room for so many.",
        files=cells("[]"),
    ),
    in_table(
        "had a picture with more boxes than max",
        says=(
            "4: labels.boxes.max: boxes.csv, line 2 has 3 boxes, the most of all samples, but max is 2; write max: 3, "
            "or remove boxes from the data"
        ),
        do="Write the number that the message gives.",
        files=cells("[[0,0,9,9],[0,0,8,8],[0,0,7,7]]"),
    ),
    in_table(
        "wrote one box where a list of boxes is wanted",
        says=(
            "4: labels.boxes: boxes.csv, line 2: column 'boxes' holds '[0,0,9,9]', but a cell needs a list of boxes, "
            "each a list itself: [[x0, y0, x1, y1, class], ...]; correct it"
        ),
        do="Write [[0,0,9,9]].",
        files=cells("[0,0,9,9]"),
    ),
    in_table(
        "wrote width and height where the right and lower edges are wanted",
        says=(
            "4: labels.boxes: boxes.csv, line 3 holds the box [20, 20, 9, 9], which ends before it begins; write "
            "format: xywh if its last two numbers are width and height, or correct it in the data"
        ),
        do="Add `format: xywh`.",
        files=cells("[]", "[[20,20,9,9]]"),
    ),
    in_table(
        "named the class of a box, and listed no classes",
        says=(
            "4: labels.boxes: boxes.csv, line 2: column 'boxes' holds a box of class 'cat'; a class is a whole number "
            "from 0 to 16,777,215, or one of the names under classes: correct it, or list the names under classes"
        ),
        do="Add `classes: [cat, dog]`.",
        files={"boxes.csv": 'path,boxes\ncat/0000.jpg,"[[0,0,9,9,""cat""]]"\n'},
    ),
    in_table(
        "used a class of boxes that is not listed",
        config=config(TABLE, ", classes: [cat, dog]"),
        says=(
            "4: labels.boxes: boxes.csv, line 2: column 'boxes' holds a box of class 2, which is neither one of the "
            "classes cat, dog nor their number from 0 to 1; add it to classes, or correct it in the data"
        ),
        do="Add the class; the first one has the number 0.",
        files=cells("[[0,0,9,9,2]]"),
    ),
    in_table(
        "gave a label of another type a key of boxes",
        config=config(TABLE).replace("type: boxes", "type: float"),
        says="4: labels.boxes.max: does not belong to a label of type float; remove it, or change the type",
        do="Remove the key, or write type: boxes.",
    ),
    in_coco(
        "named a file that is not COCO's",
        says=(
            "3: source.path: '…/instances.json' is not a COCO file of boxes: Object missing required field `images`; "
            "it needs images with id and file_name, annotations with image_id, category_id and bbox, and categories "
            "with id and name"
        ),
        do="Name the file of instances or of key points; a file of captions has no boxes.",
        files={"instances.json": "{}"},
    ),
    in_coco(
        "left an annotation of a picture that is not listed",
        says=(
            "3: source.path: '…/instances.json': annotation 7 refers to image 2, which is not under images; correct "
            "it, or remove it"
        ),
        do="Remove the annotation, or list the picture.",
        files=coco(image_id=2),
    ),
    in_coco(
        "had a box of negative width in a COCO file",
        says=(
            "4: labels.boxes: '…/instances.json', image 'cat/0000.jpg' holds the box [9, 2, -5, 4], which has a width "
            "or height below 0; correct it in the data"
        ),
        do="Correct the box.",
        files=coco(bbox=[9, 2, -5, 4]),
    ),
    in_coco(
        "gave the format of boxes that come with one",
        config=config(COCO, ", format: xyxy"),
        says="4: labels.boxes.format: kind coco brings the format of its boxes along; remove it",
        do="Remove the key.",
        files=coco(),
    ),
    in_coco(
        "wanted key points of a file that has none",
        config=config(COCO).replace("type: boxes", "type: points"),
        says=(
            "3: source.path: '…/instances.json' has no keypoints, but a label of type points is asked for; name a file "
            "such as person_keypoints.json, or remove the label"
        ),
        do="Name the file of key points.",
        files=coco(),
    ),
    in_yolo(
        "asked for a part that the data.yaml does not have",
        config=config(YOLO.replace("part: train", "part: test")),
        says=(
            "3: source.part: '…/data.yaml' has no key test, which lists the pictures of part test; it has train: "
            "choose another part, or add the key"
        ),
        do="Choose a part that the file has.",
        files=yolo(""),
    ),
    in_yolo(
        "split a YOLO data set",
        config=config(YOLO) + "    split: {validation: 0.2}\n",
        says="7: split: kind yolo has parts of its own; remove it, and choose one by part",
        do="Remove `split`: data.yaml lists the pictures of each part.",
        files=yolo(""),
    ),
    in_yolo(
        "moved the pictures of a YOLO data set",
        says=(
            "3: source.path: '…/data.yaml': there is no '…/pictures'; the nearest folder that exists is '…'; correct "
            "the path"
        ),
        do="Correct `path`, `train` or `val` in the data.yaml.",
        files=yolo("", "train: pictures\nnames: [cat]\n"),
    ),
    in_yolo(
        "wrote a line of labels with a class that has no name",
        says=(
            "3: source.path: '…/labels/0.txt', line 1, holds '2 0.5 0.5 0.1 0.1', but class 2 is not one of the 2 "
            "names of the data.yaml, counted from 0; correct it"
        ),
        do="Correct the line, or add the name.",
        files=yolo("2 0.5 0.5 0.1 0.1"),
    ),
    in_yolo(
        "wrote a line of labels with a number too few",
        says=(
            "3: source.path: '…/labels/0.txt', line 1, holds '0 0.5 0.5 0.1', but a box is: class, centre x and y, "
            "width, height; correct it"
        ),
        do="Correct the line.",
        files=yolo("0 0.5 0.5 0.1"),
    ),
    in_yolo(
        "left the labels of a YOLO data set behind",
        says=(
            "3: source.path: none of 1 pictures has a file of labels, such as '…/labels/0.txt'; put the labels there, "
            "or write labels: {} to serve the pictures alone"
        ),
        do="Copy the folder `labels`, too.",
        files={name: text for name, text in yolo("").items() if name != "labels/0.txt"},
    ),
    Mistake(
        "left boxes without area and outside of their pictures in the data",
        printed=True,
        says=(
            "train: boxes: 1 box has no area and will not be delivered, such as in cat/0000.jpg; correct or remove "
            "such boxes\n"
            "train: boxes: 1 box lies partly or wholly outside of the picture, and what is outside is cut at its edge, "
            "such as in cat/0001.jpg; correct them, or unit and format if they were written for another size"
        ),
        do="Correct or remove these boxes: the first are never delivered, the others are cut at the edge.",
        config=config(TABLE),
        command="streamd check --config config.yaml",
        status=1,
        files=cells("[[5,5,5,9]]", "[[0,0,900,9]]"),
    ),
    Mistake(
        "gave a picture of a COCO file the size of another one",
        printed=True,
        says=(
            "train: 1 unreadable file: cat/0000.jpg: boxes: its labels were drawn on 300x100 pixels, width x height, "
            "but the picture has 50x40: the size in the data has other proportions; correct or remove it"
        ),
        do="Correct width and height in the file, or remove them if its boxes are in pixels of this picture.",
        config=config(COCO),
        command="streamd check --config config.yaml",
        status=1,
        files=coco({"width": 300, "height": 100}),
    ),
)
