"""The data plane: what Envoy is given to run on, how it is started, and what it counts."""
