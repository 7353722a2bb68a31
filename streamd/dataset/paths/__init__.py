"""Files below their root, and no others: `confined` when they are listed, `open_beneath` when they are read.

`patterns` finds the files that a path with * names. `path_column` keeps names in a column (pure). `root_proof` tells
whether the data that a manifest lists are there.
"""
