"""Images in LMDB files that ml-pyxis wrote: `scan` lists them with the library, `store` copies them without it.

`pyxis_layout` is how their values are made up (pure), `pyxis_reader` their samples in order, `file_head` whether a file
is whole (pure).
"""
