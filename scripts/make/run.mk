##@ Run

# Folder of kustomize/overlays.
VARIANT ?= monolithic-rayjob

.PHONY: demo
demo: system .venv/.ready ## bare checkout -> cluster -> platform -> a finished training run
	@$(PY) -m tandem.run.demo --variant $(VARIANT) --provider $(PROVIDER)

.PHONY: bench
bench: .venv/.ready ## measure the README's figures on this machine
	@$(PY) -m tandem.bench
	@$(PY) -m tandem.bench_sidecars
	@$(PY) -m tandem.bench_peer_watcher
