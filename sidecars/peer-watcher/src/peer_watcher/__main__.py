"""`python -m peer_watcher`."""

from peer_watcher.main import entry

entry()
