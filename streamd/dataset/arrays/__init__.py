"""Images that are rows of arrays: `npy_scan` lists them, `npy_store` gathers them from the mapped files.

Also what all stores of rows have in common: the protocol (`store`), labels beside the images (`label_table`), which
numbers are `pixels`, how others become them (`to_uint8`), `readahead` from the disk, `stale_files`.
"""
