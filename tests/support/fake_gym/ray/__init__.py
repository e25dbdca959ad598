"""A fake of what Ray does to a process: from its start on, signals are its own."""

import os
import signal
from typing import Any


def init() -> Any:
    """Take SIGTERM, as the real one does: the process would be aborted."""
    signal.signal(signal.SIGTERM, lambda *_: os.abort())
