"""Files below their root, and no others: `confined` when they are listed and read, with their names in columns.

`patterns` finds the files that a path with * names, and lists folders without bookkeeping. `root_proof` tells whether
the data that a manifest lists are there.
"""
