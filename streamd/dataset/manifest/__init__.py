"""The list of samples: `types` is what is asked of a source and what it gives back, `manifest` that as one mapped file.

`file_names` keeps names as columns: each folder once, whole numbers as narrow as they may be (pure).
`text_column` does so with labels that are texts.
"""
