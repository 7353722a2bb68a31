"""From files to a manifest of samples, and from the manifest back to bytes or rows: one folder a format.

    table → columns ─────────────┐         ┌ convert → encode, tags ──┐
    filelist                     ┼→ cells ─┴ lookup → confined        ┼→ Scanned → stream_samples → manifest
    npy_scan → patterns, table ──┤                                    │
    tar: headers → samples → labels ┘                                 │
    folder → encode, confined                                         ┘

    scan               the samples of a source, whatever its kind     open_store   the store that a list needs
    stream_samples     train and validation, shared classes           transform_source    the user's function, not run
    formats            the kinds of sources (pure)                    shard_reader   images that lie in larger files
    sources            what a stream asks of its data (pure)

    files/     images in folders, tables, lists      tar/     in WebDataset shards
    arrays/    rows of .npy files; what all stores of rows have in common
    hdf5/      rows of HDF5 datasets                 lmdb/    values that ml-pyxis wrote
    cache/     what was decoded, kept on disk        labels/  columns and cells to numbers and classes
    paths/     files below their root, and no others         manifest/    the list, one mapped file

A format is a folder: its settings in `__init__`, which the configuration reads, a function that lists its samples, and
what reads them, unless they are files of their own. `formats` and `open_store` name it in one line each. CONTRIBUTING
writes one from beginning to end.
"""
