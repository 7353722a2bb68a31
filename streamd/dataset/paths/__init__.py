"""Files below their root, and no others: `confined` when they are listed, `open_beneath` when they are read.

`patterns` finds the files that a path with * names, and lists folders without bookkeeping. `open_beneath` also tells
whether the data that a manifest lists are there.
"""
