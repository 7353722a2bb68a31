"""What processes say to each other, and the memory that they share.

messages          client and daemon                     frames           their bytes, one by one or in bundles
worker_messages   daemon and worker                     progress_page    at which row a worker is
slots             memfds, made and sealed               mapping          mapped, and lent as arrays
fd_passing        descriptors handed to clients, and the news of their death
endpoint          where daemon and client meet          parent_death     a helper ends with its starter
local_daemon      what `streamd.local` asks of its daemon
thumbnail_messages    what the daemon asks of the process that draws bad samples
"""
