"""Decode processes as their parent sees them: started, given tasks, watched, and judged when they end.

The daemon supervises those of its own host, a node of a cluster those of that node.

worker_process    a process behind a socket pair, its tasks and mapped slots; a decode process, its deadlines, the timer
                  of a busy one, and what its end says about a sample or a transform; a worker beside a pool
"""
