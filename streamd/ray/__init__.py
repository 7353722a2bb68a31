"""Decoding on a Ray cluster: a bridge on the daemon's host, and one actor a node above today's decode processes.

__main__       the bridge's entry point           bridge        the bridge: commands in, reports out
cluster        the only module that imports ray   task_table*   which nodes decode, which node has which tasks
node_keeper    one node as the bridge sees it     node_actor    the actor on a node: its files and decode processes
"""
