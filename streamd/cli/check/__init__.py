"""`streamd check`: reads the data as a worker would, and reports what it finds.

command           the command                            run         from configuration to findings, with progress
findings          the findings, which are troubles, and the report (pure)
labels            classes, counts, ranges, copies of files, masks (pure)
inspection_pool   has workers inspect samples, and finds those that end them
"""
