"""The commands: one file each, or a folder where one is large."""
