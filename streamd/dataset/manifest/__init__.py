"""The list of samples: `types` is what is asked of a source and what it gives back, `manifest` that as one mapped file.

`columns` keeps names as columns: each folder once, whole numbers as narrow as they may be; and labels that are texts
(pure).
"""
