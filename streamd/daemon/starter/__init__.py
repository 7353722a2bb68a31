"""Makes a configuration from the data at a path, for `streamd init`, `streamd serve PATH` and `streamd.local(PATH)`.

    survey           which kind of data a path holds, and its streams; other data are refused by name
    survey_labels    the columns of a table, and the labels beside the images in tars
    starter_config   the survey as a configuration, with its samples listed and an image size
    picture_sizes    whether all pictures have one size
    process          all of this in a process that ends, for a daemon

`dataset.layouts` says what lies in a folder. The survey reads names and cells. Everything that samples decide is taken
from one listing of them, by the functions of `serve`, which also finds the faults of the data.
"""
