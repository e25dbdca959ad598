"""`vllm-pool serve`: Envoy and the manager, kept alive together."""
