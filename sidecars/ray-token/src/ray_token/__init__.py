"""Puts a token for Ray into a run's empty Secret."""
