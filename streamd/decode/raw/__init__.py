"""Reads the numbers of a picture as they are stored, for `mode: raw`: uint8, uint16 or float32, 1 to 32 channels.

decode        a file of any of these formats into a row      png    PNG, also 16 bits a channel
picture       the numbers, and what is expected of them      tiff   TIFF, by tifffile and the codecs of imagecodecs
planes        resizes numbers of any depth                   npy    arrays of NumPy
"""
