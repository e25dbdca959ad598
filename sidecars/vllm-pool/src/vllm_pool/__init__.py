"""One address for many vLLM replicas: Envoy carries the requests, a manager says who is in."""
