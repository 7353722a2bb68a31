import numpy as np
import tables

file = tables.open_file("samples.hdf5")
images, labels = file.root.training_samples, file.root.training_labels


def batches(size=32, chunk=3200):
    while True:
        for start in range(0, len(images), chunk):
            some_images, some_labels = images[start : start + chunk], labels[start : start + chunk]
            order = np.random.permutation(len(some_images))
            for first in range(0, len(order), size):
                rows = order[first : first + size]
                yield some_images[rows], some_labels[rows]


model.fit(batches(), steps_per_epoch=-(-len(images) // 32), epochs=2)
