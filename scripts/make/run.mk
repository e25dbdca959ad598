##@ Run

# Folder of kustomize/overlays.
VARIANT ?= disagg-rayclusters
# Id of a run: a DNS label of at most 20 characters; empty = of this moment (run), all (status).
RUN_ID ?=
# kueue = `run`, `explain` and `rehearsal` put a variant into a queue of Kueue's; empty = what it
# says itself.
SCHEDULER ?=
# Queue of that scheduler's: low-prio (empty) or high-prio.
QUEUE ?=
# 1 = `run` only applies, and does not follow to the end.
DETACH ?=
# 1 = `logs` goes on until the run has ended.
FOLLOW ?=
# text or json, for `explain`, `run` and `status`.
OUTPUT ?= text
# `explain` looks at these nodes too: a file (kubectl get nodes -o json), or cluster.
NODES ?=

.PHONY: demo
demo: system .venv/.ready ## bare checkout -> cluster -> platform -> a finished training run
	@$(PY) -m tandem.run.demo --variant $(VARIANT) --provider $(PROVIDER)

.PHONY: explain
explain: .venv/.ready ## what KAI or Kueue makes of a variant, its traps, whether it fits (NODES=)
	@$(PY) -m tandem.explain $(VARIANT) $(addprefix --nodes ,$(NODES)) \
	  $(addprefix --scheduler ,$(SCHEDULER)) $(addprefix --queue ,$(QUEUE)) --output $(OUTPUT)

.PHONY: run
run: .venv/.ready ## a run of its own, followed to its end (VARIANT= RUN_ID= SCHEDULER= DETACH=1)
	@$(PY) -m tandem.runs start --variant $(VARIANT) $(addprefix --run-id ,$(RUN_ID)) \
	  $(addprefix --scheduler ,$(SCHEDULER)) $(addprefix --queue ,$(QUEUE)) \
	  $(if $(DETACH),--detach) --output $(OUTPUT)

.PHONY: status
status: .venv/.ready ## roles, endpoints, queue and verdict of a run (RUN_ID=; without: all runs)
	@$(PY) -m tandem.runs status $(RUN_ID) --output $(OUTPUT)

.PHONY: logs
logs: .venv/.ready ## what all roles of a run say, merged (RUN_ID=… FOLLOW=1)
	@$(PY) -m tandem.runs logs $(RUN_ID) $(if $(FOLLOW),--follow)

.PHONY: stop
stop: .venv/.ready ## end a run: its logs are kept, all else of it goes (RUN_ID=…)
	@$(PY) -m tandem.runs stop $(RUN_ID)

.PHONY: clean
clean: .venv/.ready ## remove what ended runs have left in the cluster (RUN_ID=; without: all)
	@$(PY) -m tandem.runs clean $(RUN_ID)

.PHONY: bench
bench: .venv/.ready ## measure the README's figures on this machine
	@$(PY) -m tandem.bench
	@$(PY) -m tandem.bench_sidecars
	@$(PY) -m tandem.bench_peer_watcher
	@$(PY) -m tandem.rehearsal

.PHONY: bench-pool
bench-pool: .venv/.ready ## what a vLLM pool's data plane costs, beside a plain aiohttp proxy (OUTPUT=)
	@$(PY) -m tandem.tools make pool >&2
	@$(PY) -m tandem.bench_pool --output $(OUTPUT)

# Runs of `rehearsal`, and the pods of each; nodes and profile are those of `cluster-up`.
RUNS ?= 20
PODS ?= 64

.PHONY: rehearsal
rehearsal: tools bundle ## many large runs on simulated nodes, measured (KWOK_NODES= SCHEDULER=)
	@$(PY) -m tandem.rehearsal --runs $(RUNS) --pods $(PODS) $(addprefix --nodes ,$(KWOK_NODES)) \
	  $(addprefix --profile ,$(KWOK_PROFILE)) $(addprefix --scheduler ,$(SCHEDULER)) --output $(OUTPUT)
