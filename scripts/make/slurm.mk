##@ Slurm

# Configuration of a job; `plan-slurm` writes an example where there is none.
CONFIG ?= pools.yaml

.PHONY: plan-slurm
plan-slurm: .venv/.ready ## nodes, ports, commands and files of a job; nothing is started (CONFIG=)
	@test -e $(CONFIG) || { $(PY) -m slurm_launcher example >$(CONFIG); echo "wrote $(CONFIG)" >&2; }
	@$(PY) -m slurm_launcher plan $(CONFIG) --output $(OUTPUT)
