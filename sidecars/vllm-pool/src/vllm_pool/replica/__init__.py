"""The agent beside one vLLM server: starts or watches it, and keeps it known to every balancer."""
