"""Messages between processes, and the memory that they share.

messages          between client and daemon             frames           their bytes, one by one or in bundles
worker_messages   between daemon and worker             progress_page    the row at which a worker is
slots             memfds, created and sealed            mapping          mapped memory, and arrays lent from it
fd_passing        descriptors for clients, and the detection of their death
endpoint          the daemon's default address          parent_death     ends a helper with its parent
record_datagrams  of the records above, which wait for room
local_daemon      the request of `streamd.local` to the daemon that it starts, and the lock with which that ends
thumbnail_messages    the daemon's request to the process that draws bad samples
"""
