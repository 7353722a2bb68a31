"""`streamd pack`: writes a stream once as a store that is read faster.

command      the command
run          the phases of a run: list, decode and write, finish, verify, put in place; progress
batches      the stream in the order of the pack, and its batches from ordinary workers
packed_rows  the images, boxes and points of some samples; box_values and label_cells are what stands beside images
writer       the interface of formats: write_npy, write_tar, write_hdf5, write_lmdb; row_files are shared by two of them
workdir      the hidden folder of an incomplete pack, with a journal from which the next run continues
checksums    compares what was written with what is read back
"""
