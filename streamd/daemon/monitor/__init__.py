"""Metrics, health and the dashboard over HTTP, in the daemon's one event loop.

    http_server  dashboard, /metrics, /healthz, /readyz    http_access    token, Host header, response headers
    snapshot     the daemon's figures at one moment        bad_samples    kinds of bad samples, and their list (pure)
    metrics      the metrics, as Prometheus reads them     live_feed      events for the page, one a second
    batch_preview   a copy of the next batch sent          sample_images  pictures of a batch and of bad samples

Nothing is counted here: figures are read when a request comes, and cost nothing in between.
"""
