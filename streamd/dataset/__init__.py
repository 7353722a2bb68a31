"""From files to a manifest of samples, and from the manifest back to bytes or rows. Each format has one folder.

    table → columns ─────────────┐         ┌ convert → encode ────────┐
    filelist                     ┼→ cells ─┴ lookup → confined        ┼→ ScannedSamples → scan → manifest
    npy_scan → patterns, table ──┤                                    │
    tar: samples                 ┘                                    │
    folder → encode, confined                                         │
    coco, yolo → boxes                                                ┘

    scan       lists a source of any kind, selects a part, shares classes    open_store    opens a list's store
    formats    the kinds of sources (pure)                                   shard_reader  reads images in larger files
    sources    the settings of a stream's data (pure)                        cache         decoded samples kept on disk
    layouts    what a folder holds: classes, masks, boxes                    transform_source    finds a transform

    files/     images in folders, tables, lists      tar/     images in WebDataset shards
    arrays/    rows of .npy files; code shared by all stores of rows
    hdf5/      rows of HDF5 datasets                 lmdb/    values written by ml-pyxis
    coco/      pictures and boxes of a COCO file     yolo/    pictures and boxes of a YOLO data set
    labels/    columns and cells to numbers and classes    paths/    files below a root, and no others
    manifest/  the list of samples, one mapped file

The folder of a format holds its settings, in `__init__`, where the configuration reads them; a function that lists its
samples; and a reader for them, unless the samples are files of their own. `formats` and `open_store` each name the
format in one line. CONTRIBUTING adds a format step by step.
"""
