"""What an operator's tools ask the daemon over HTTP, in its one event loop.

    http_server  /metrics, /healthz, /readyz          http_access  whose requests are answered, and how
    snapshot     what is known at a moment            bad_samples  kinds of bad samples, and their list (pure)
    metrics      the metrics, as Prometheus reads them
    dashboard    the page and what it asks            live_feed    what it is sent every second
    sample_images, batch_preview                      pictures of a batch and of bad samples

Nothing is counted here: figures are read when somebody asks, and cost nothing between.
"""
