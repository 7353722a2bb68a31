"""The list of samples: `types` has what the listing of a source returns, `manifest` keeps that in one mapped file.

`header` says what a file holds and where, and refuses one that contradicts itself.

`columns` stores names as columns, with each folder once and whole numbers as narrow as possible, and labels that are
texts (pure). `packed_names` says where a pack keeps the names of its files (pure).
"""
