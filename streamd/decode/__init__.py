"""Decodes a file's bytes into a row of a slot: one decoder for each format, chosen by content, never by name.

    sniff         the format of a file               decoders     the decoder for it
    jpeg          JPEG, by libjpeg-turbo             pillow       all other formats, any mode to RGB or greyscale
    class_numbers the numbers of a mask              raw          numbers as they are stored
    geometry      the part that a row shows          resize       to the size of a row
    pixel_id      the identity of the pixels         boxes        boxes and points of a picture in its row
    inference     one image for a trained model      drawn_picture a batch for people who look at it

This file imports nothing: a trainer may import `inference` without the decoders, and learns which extra brings them.
"""
