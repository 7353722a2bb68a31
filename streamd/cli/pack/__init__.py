"""`streamd pack`: writes a stream once as a store that is read faster.

command      the command
run          the phases of a run: list, decode and write, finish, verify, put in place; progress
batches      the stream in the order of the pack, its batches from ordinary workers, checksums, the interface of formats
label_cells  what stands beside the images, and the configuration that serves the pack
workdir      the hidden folder of an incomplete pack, with a journal of the shards that are whole
write_npy, write_tar, write_hdf5, write_lmdb   the formats
"""
