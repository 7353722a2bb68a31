"""Messages between processes, and the memory that they share.

messages          between client and daemon             frames           their bytes, one by one or in bundles
worker_messages   between daemon and worker             progress_page    the row at which a worker is
slots             memfds, created and sealed            mapping          mapped memory, and arrays lent from it
fd_passing        descriptors for clients, and the detection of their death
endpoint          the daemon's default address          inherited_state  what a new process corrects
child             how a process is started, and ended   router           the ROUTER socket
record_link       the worker's records over a socket    lifeline         how a client's death is seen
key_files         key pairs of clients and daemons
local_daemon      the request of `streamd.local` to the daemon that it starts, and the lock with which that ends
"""
