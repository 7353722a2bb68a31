"""Decoded samples kept on disk: the `store`, a `record` for each sample, and the `file`.

With the file comes the lock that decides which process may write.
"""
