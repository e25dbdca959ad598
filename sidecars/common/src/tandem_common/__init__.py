"""What every sidecar needs: settings, logs, health and metrics over HTTP, a Kubernetes client."""
