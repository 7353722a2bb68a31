"""Labels of samples: columns and cells of any source to numbers, classes and tags.

columns      a table's columns, row locations, conditions           cells       cells to texts, numbers, lists
convert      cells to labels, by their type                         encode      categories, numbers, strings (pure)
tags         any number of classes a sample (pure)                  npy_columns .npy files of labels, beside any source
"""
