"""Streams as each framework wants them. Nothing here imports a framework before one of its functions is called."""
