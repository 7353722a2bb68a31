"""The window: given every trainer's cursor and credit, what is produced next, what is sent to whom, what is free again.

Pure: events in, actions out, time an argument. `Window.handle` is the only way in.
"""

from __future__ import annotations

from streamd.window.window import Window

__all__ = ["Window"]
