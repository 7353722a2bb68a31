"""Makes a configuration from the data at a path, for `streamd init`, `streamd serve PATH` and `streamd.local(PATH)`.

    survey           which kind of data a path holds, and its streams; other data are refused by name
    survey_table     the columns of a table: images, labels, parts
    survey_shards    the labels beside the images in tars
    label_types      the type of a column of texts as a label (pure)
    data_survey      the findings of a survey (pure)
    starter_config   the survey as a configuration, with its samples listed and an image size
    picture_sizes    whether all pictures have one size
    process          all of this in a process that ends, for a daemon

`dataset.layouts` says what lies in a folder. The survey reads names and cells. Faults of the data are found when the
samples are listed, by the functions of `serve`.
"""
