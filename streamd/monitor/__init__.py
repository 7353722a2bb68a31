"""What an operator's tools ask the daemon over HTTP, in its one event loop; needs the extra `monitor`.

    web          /metrics, /healthz, /readyz          hosts        whose requests are answered (pure)
    figures      what is known at a moment            faults       kinds of bad samples (pure)
    exposition   those as Prometheus reads them
    of_daemon, of_streams, of_trainers, families      the metrics themselves

Nothing is counted here: figures are read when somebody asks, and cost nothing between.
"""
