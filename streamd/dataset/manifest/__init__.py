"""The list of samples: `types` has what the listing of a source returns, `manifest` keeps that in one mapped file.

`columns` stores names as columns, with each folder once and whole numbers as narrow as possible, and labels that are
texts; it says where a pack keeps the names of its files (pure).
"""
