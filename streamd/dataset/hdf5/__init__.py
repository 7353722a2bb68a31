"""Images in an array of an HDF5 file: `scan` lists them, by the `arrays` that it finds.

`mapped_store` gathers rows that lie in the file as they are, `library_store` those that are compressed, with a
`chunk_cache`. `chunk_grid` is how an array is cut, `chunk_cost` what compressed chunks cost, `open` a file only read.
"""
