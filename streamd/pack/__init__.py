"""`streamd pack`: a stream written once as a store that is read faster.

job      what is packed, phase by phase: list, decode and write, finish, verify, put in place
decoded  batches from the ordinary workers, in order
writer   the seam; npy, tar, hdf5 and lmdb are behind it, rows are what two of them write
journal  how far it has come, for the run that goes on; work is where it lies until it is whole
sums     what was written against what is read back
"""
