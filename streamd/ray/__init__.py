"""Decoding on a Ray cluster: a bridge on the daemon's host, and one actor a node above today's decode processes.

__main__       the bridge's entry point           bridge        the bridge: commands in, reports out
cluster        the only module that imports ray   task_table*   which node has which tasks, and until when
node_choice*   which nodes of a cluster decode    slot_writer   copies the rows of a result into a slot
stream_parcel  what a node needs to open a stream

node_actor     the actor's methods                node_workers  the decode processes of a node
node_files     manifests and transforms that were sent to a node
"""
