"""Batches made by workers: cut into tasks, given out, and judged by what workers report.

engine        produces batches and handles their outcomes, from the streams that workers have open; owns the other
              parts, and calls its EngineListener
worker_pool   the workers, in generations: hires and replaces them, and assigns tasks
batch_job     one batch and its tasks, and how many rows a task has
"""
