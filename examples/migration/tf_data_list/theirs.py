import tensorflow as tf


def parse(line):
    path, label = tf.unstack(tf.strings.split(line, " "), 2)
    image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
    return tf.image.resize(image, (128, 128)), tf.strings.to_number(label, tf.int64)


lines = tf.data.TextLineDataset("train_list.txt").cache()
data = lines.shuffle(10_000).map(parse, tf.data.AUTOTUNE).batch(32).prefetch(tf.data.AUTOTUNE)

model.fit(data, epochs=2)
