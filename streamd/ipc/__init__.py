"""Messages between processes, and the memory that they share.

messages          between client and daemon, and bytes  worker_messages  between daemon and worker
slots             what is shared with workers: memory, progress, datagrams
mapping           mapped memory, arrays lent from it    lifeline         how a client's death is seen
fd_passing        descriptors for clients, and the detection of their death
endpoint          the daemon's default address          inherited_state  what a new process corrects
child             how a process is started, and ended   router           the ROUTER socket
record_link       the records of a gate over a socket
key_files         key pairs of clients and daemons
local_daemon      the request of `streamd.local` to the daemon that it starts, and the lock with which that ends
"""
