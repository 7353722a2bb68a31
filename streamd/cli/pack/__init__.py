"""`streamd pack`: writes a stream once as a store that is read faster.

command      the command
run          the phases of a run: list, decode and write, finish, verify, put in place; its hidden folder, and the
             journal of the shards that are whole
batches      the stream in the order of the pack, its batches from ordinary workers, checksums, the interface of formats
label_cells  what stands beside the images, and the configuration that serves the pack
write_npy, write_tar, write_hdf5, write_lmdb   the formats
"""
