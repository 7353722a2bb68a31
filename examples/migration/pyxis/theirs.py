import lmdb
import msgpack
import numpy as np

database = lmdb.open("data.lmdb", readonly=True, max_dbs=2)
samples, about = database.open_db(b"data_db"), database.open_db(b"meta_db")
transaction = database.begin()
count = int(transaction.get(b"nb_samples", db=about))


def sample(number):  # as pyxis.Reader does
    values = msgpack.unpackb(transaction.get(f"{number:010}".encode(), db=samples), raw=True)
    arrays = {name: msgpack.unpackb(value, raw=True) for name, value in values.items()}
    return [np.frombuffer(arrays[n][b"data"], arrays[n][b"dtype"]).reshape(arrays[n][b"shape"]) for n in (b"X", b"y")]


def batches(size=32):
    while True:
        order = np.random.permutation(count)
        for start in range(0, count, size):
            images, labels = zip(*(sample(number) for number in order[start : start + size]), strict=True)
            yield np.stack(images), np.concatenate(labels)


model.fit(batches(), steps_per_epoch=-(-count // 32), epochs=2)
