"""Decode processes as their parent sees them: started, given tasks, watched, and judged when they end.

The daemon supervises those of its own host, a node of a cluster those of that node.

worker_link       one process behind a socket pair: its tasks, and the slots that it has mapped
worker_process    a decode process: its progress page, its deadlines, and how it ended
watchdog          the timer of a busy process
crashes           what the end of a process says about a sample or a transform
"""
