"""Images in files of their own: listed from a `folder`, a `table` or a `filelist`; `lookup` finds what these name."""
