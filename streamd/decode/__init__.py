"""From a file's bytes to a row of a slot: one decoder a format, chosen by content, never by name.

    sniff         the format of a file               decoders     the decoder for it
    jpeg          by libjpeg-turbo                   pillow       all others, any mode to RGB or greyscale
    exif          which side is up                   resize       to the size of a row
    random_crop   where a random part lies           pixel_id     what the pixels depend on
    pil_image     an array as Pillow has it          inference    one image for a trained model

Nothing is imported here: `inference` is what a trainer may call, and says which extra the decoders need.
"""
