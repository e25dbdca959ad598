"""One run of a workload: apply it, follow it to its verdict, keep its logs and results."""
