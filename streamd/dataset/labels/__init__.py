"""Labels of samples: columns and cells of any source to numbers, classes and tags.

columns      columns of tables and arrays, conditions    cells           cells to texts, numbers, lists
convert      cells to labels, by their type              encode          categories, numbers, strings, tags, faults
boxes        boxes and points (pure)                     text_encoding   text and JSON in any encoding
"""
