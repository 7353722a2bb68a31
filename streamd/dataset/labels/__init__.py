"""What is said of samples: columns and cells of any source to numbers, classes, tags and weights.

columns      a table's columns, their lines, rows by condition      cells       cells to texts, numbers, lists
convert      cells to labels, by their type                         encode      categories, numbers, strings (pure)
tags         any number of classes a sample (pure)                  one_hot     0 and 1 to categories and tags
npy_columns  .npy files of labels, beside any source                weights     what each sample weighs (pure)
shared_classes   one class list for all streams (pure)
"""
