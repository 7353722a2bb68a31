"""The process: `python -m streamd.worker LINK TRACK`."""

from __future__ import annotations

from streamd.worker.main import main

if __name__ == "__main__":
    main()
