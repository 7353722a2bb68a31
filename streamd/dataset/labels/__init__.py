"""What is said of samples: columns and cells of any source to numbers, classes, tags and weights.

columns      a table's columns, their lines, rows by condition      cells       cells to texts, numbers, lists
convert      cells to labels, by their type                         encode      categories, numbers, strings (pure)
tags         any number of classes a sample (pure)                  weights     what each sample weighs (pure)
npy_columns  .npy files of labels, beside any source
"""
