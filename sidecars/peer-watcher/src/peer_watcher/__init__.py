"""Ends both sides of a run when one of them is dead, or when the run is done; never on doubt."""
