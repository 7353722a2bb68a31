"""A configuration made from what lies at a path: behind `streamd init`, `streamd serve PATH` and `streamd.local(PATH)`.

    survey           which kind of data a path holds, and its streams; what is none of ours is refused by name
    survey_table     the columns of a table: images, labels, parts
    survey_shards    what stands beside the images in tars
    label_types      what a column of texts is as a label (pure)
    data_survey      what a survey found (pure)
    starter_config   the survey as a configuration, listed and sized
    picture_sizes    whether all pictures are of one size
    process          all of it in a process that ends, for a daemon

The survey looks at names and cells; the listing of the samples, by the functions that serve uses, finds what is wrong.
"""
