"""`streamd pack`: a stream written once as a store that is read faster.

command    the command
run        what is packed, phase by phase: list, decode and write, finish, verify, put in place
batches    batches from the ordinary workers, in order
writer     the seam; write_npy, write_tar, write_hdf5, write_lmdb are behind it, row_files are what two of them write
journal    how far it has come, for the run that goes on; workdir is where it lies until it is whole
checksums  what was written against what is read back
"""
