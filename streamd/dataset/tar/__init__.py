"""Images in WebDataset shards: `scan` lists them by their `headers`; `read` reads one where it lies.

`samples` puts files of one key together, `labels` what stands beside an image.
"""
