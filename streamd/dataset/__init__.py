"""From files to a manifest of samples, and from the manifest back to bytes or rows. Each format has one folder.

    table → columns ─────────────┐         ┌ convert → encode, tags ──┐
    filelist                     ┼→ cells ─┴ lookup → confined        ┼→ ScannedSamples → stream_samples → manifest
    npy_scan → patterns, table ──┤                                    │
    tar: headers → samples → labels ┘                                 │
    folder → encode, confined                                         │
    coco: annotations → boxes; yolo: data_yaml, label_files → boxes   ┘

    scan               lists the samples of a source of any kind     open_store    opens the store for a manifest
    stream_samples     train and validation parts, shared classes    transform_source    finds a transform, runs none
    formats            the kinds of sources (pure)                   shard_reader  reads images inside larger files
    sources            the settings of a stream's data (pure)    layouts    what a folder holds: classes, masks, boxes

    files/     images in folders, tables, lists      tar/     images in WebDataset shards
    arrays/    rows of .npy files; code shared by all stores of rows
    hdf5/      rows of HDF5 datasets                 lmdb/    values written by ml-pyxis
    coco/      pictures and boxes of a COCO file     yolo/    pictures and boxes of a YOLO data set
    cache/     decoded samples kept on disk          labels/  columns and cells to numbers and classes
    paths/     files below a root, and no others     manifest/    the list of samples, one mapped file

The folder of a format holds its settings, in `__init__`, where the configuration reads them; a function that lists its
samples; and a reader for them, unless the samples are files of their own. `formats` and `open_store` each name the
format in one line. CONTRIBUTING adds a format step by step.
"""
