"""`streamd pack`: a stream written once as a store that is read faster.

command    the command
run        what is packed, phase by phase: list, decode and write, finish, verify, put in place; how far it has come
batches    the stream in the order of the pack, and batches of it from the ordinary workers
writer     the seam; write_npy, write_tar, write_hdf5, write_lmdb are behind it, row_files are what two of them write
workdir    where it lies until it is whole, with a journal of how far it has come, for the run that goes on
checksums  what was written against what is read back
"""
