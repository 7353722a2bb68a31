"""Files below their root, and no others: `confined` when they are listed, `open_beneath` when they are read.

`patterns` are the files that a path with * means, `path_column` the names in a column, cut when asked for (pure).
`root_proof` tells whether the data that a manifest lists are there.
"""
