"""Decodes a file's bytes into a row of a slot: one decoder for each format, chosen by content, never by name.

    sniff         the format of a file               decoders     the decoder for it
    jpeg          JPEG, by libjpeg-turbo             pillow       all other formats, any mode to RGB or greyscale
    exif          the orientation of a picture       resize       to the size of a row
    geometry      the part that a row shows          random_crop  the box of a random crop
    inference     one image for a trained model      boxes        boxes and points of a picture in its row
    drawn_picture a batch for people who look at it  pixel_id     the identity of the pixels

This file imports nothing: a trainer may import `inference` without the decoders, and learns which extra brings them.
"""
