##@ Slurm

# Configuration of a job; `plan-slurm` writes an example where there is none.
CONFIG ?= pools.yaml

$(CONFIG):
	@$(PY) -m slurm_launcher example >$@
	@echo "wrote an example: $@" >&2

.PHONY: plan-slurm
plan-slurm: .venv/.ready $(CONFIG) ## nodes, ports, commands and files of a job; nothing is started (CONFIG=)
	@$(PY) -m slurm_launcher plan $(CONFIG) --output $(OUTPUT)
