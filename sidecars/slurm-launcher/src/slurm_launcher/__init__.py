"""Training and external vLLM pools as one heterogeneous Slurm job."""
