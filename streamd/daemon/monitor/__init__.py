"""Metrics, health and the dashboard over HTTP, in the daemon's one event loop.

    http_server    dashboard and its events, /metrics, /healthz, /readyz; who may see what
    snapshot       the daemon's figures at one moment, and what the page shows of them
    metrics        the metrics, a table over the snapshot
    sample_images  pictures of a batch and of bad samples

Nothing is counted here: figures are read when a request comes, and cost nothing in between.
"""
