"""The entry point of a worker: `python -m streamd.worker LINK PAGE`."""

from __future__ import annotations

from streamd.worker.main import main

if __name__ == "__main__":
    main()
