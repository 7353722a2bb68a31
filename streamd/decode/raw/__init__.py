"""Reads the numbers of a picture as they are stored, for `mode: raw`: uint8, uint16 or float32, 1 to 32 channels.

decode        a file of any of these formats into a row, PNG (also 16 bits a channel) and .npy themselves
picture       the numbers, what is expected of them, and how they are resized
tiff          TIFF, by tifffile and the codecs of imagecodecs
"""
