"""Provider `host`: a real one-node Kubernetes on a Linux machine without a container engine."""
