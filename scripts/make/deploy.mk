##@ Deploy

# Environment of helmfile.yaml: default (the local cluster), kueue (with Kueue), kind, nvkind, prod.
ENV ?= default
# 1 = `destroy` deletes the CRDs too, and with them every RayCluster, RayJob and JobSet.
CRDS ?=

.PHONY: bundle
bundle: tools ## charts and CRDs for the local environment, from the Go modules
	@$(PY) -m tandem.bundle fill

.PHONY: bundle-verify
bundle-verify: .venv/.ready ## check every file of the bundle, images too
	@$(PY) -m tandem.bundle verify

.PHONY: sync
sync: bundle ## install or upgrade the platform (ENV=default)
	@$(PY) -m tandem.platform sync --environment $(ENV)

.PHONY: destroy
destroy: .venv/.ready ## remove workloads, then releases; CRDs stay (CRDS=1: they go too)
	@$(PY) -m tandem.platform destroy --environment $(ENV) $(if $(CRDS),--crds)

.PHONY: deploy
deploy: .venv/.ready ## apply a variant (VARIANT=monolithic-rayjob)
	@$(PY) -m tandem.deploy up --variant $(VARIANT)

.PHONY: undeploy
undeploy: .venv/.ready ## remove a variant's run
	@$(PY) -m tandem.deploy down --variant $(VARIANT)

.PHONY: render
render: bundle ## write everything that would be applied to build/rendered
	@$(PY) -m tandem.render

.PHONY: validate
validate: bundle ## render, then check against strict schemas
	@$(PY) -m tandem.validate
