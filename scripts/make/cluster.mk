##@ Cluster

# auto, existing or host.
PROVIDER ?= auto
# Simulated GPUs of the host provider's node; empty = what it has, at first 8.
GPUS ?=
# Simulated nodes beside the host provider's real one, and what they are like (h100, gb200-nvl72,
# gb300-nvl72); empty = as many as it has, at first none. 0 = away with them.
KWOK_NODES ?=
KWOK_PROFILE ?=
# 1 = `cluster-down` deletes the node's images and the logs too.
PURGE ?=
# 1 = `cluster-down` also takes down the host cluster of another checkout.
FORCE ?=

.PHONY: cluster-up
cluster-up: .venv/.ready ## bring the cluster up, or repair it (PROVIDER=auto GPUS=8 KWOK_NODES=0)
	@$(PY) -m tandem.cluster up --provider $(PROVIDER) $(addprefix --gpus ,$(GPUS)) \
	  $(addprefix --kwok-nodes ,$(KWOK_NODES)) $(addprefix --kwok-profile ,$(KWOK_PROFILE))

.PHONY: cluster-down
cluster-down: .venv/.ready ## take it down; images and logs stay (PURGE=1: not even those)
	@$(PY) -m tandem.cluster down --provider $(PROVIDER) $(if $(PURGE),--purge) $(if $(FORCE),--force)

.PHONY: cluster-status
cluster-status: .venv/.ready ## what runs, since when, and whether it works
	@$(PY) -m tandem.cluster status --provider $(PROVIDER)
