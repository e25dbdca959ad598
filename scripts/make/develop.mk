##@ Develop

# Extra arguments for pytest, such as PYTEST='-k lifecycle -x'.
PYTEST ?=
# Only these locks (files requirements/NAME.in); empty = all.
REQUIREMENTS ?=

.PHONY: fmt
fmt: .venv/.ready ## format Python, shell and Go
	@scripts/lint --fix

.PHONY: lint
lint: .venv/.ready ## ruff, mypy, shellcheck, shfmt, yamllint, hadolint, gofmt
	@scripts/lint

.PHONY: update
update:: bundle ## regenerate what is generated without network: goldens, tables of READMEs
	@$(PY) -m tandem.tables update
	@$(PY) -m tandem.golden update

.PHONY: verify
verify:: .venv/.ready ## fail when versions, locks of Python packages, tables or goldens have drifted
	@$(PY) -m tandem.verify

.PHONY: update-requirements
update-requirements: .venv/.ready ## compile requirements/*.in into hashed *.txt (REQUIREMENTS="dev")
	@$(PY) -m tandem.requirements compile $(REQUIREMENTS)

.PHONY: test
test: tools bundle ## unit, render and policy tests: no cluster
	@scripts/test unit $(PYTEST)

.PHONY: test-integration
test-integration: tools bundle ## tests against a real kube-apiserver
	@scripts/test integration $(PYTEST)

.PHONY: e2e
e2e: tools bundle images ## tests on the real one-node cluster
	@scripts/test e2e $(PYTEST)

.PHONY: check-kai
check-kai: tools bundle ## gangs, reclaim and topology on a real KAI, where the bundle holds it
	@scripts/test kai $(PYTEST)

.PHONY: check-slurm
check-slurm: system .venv/.ready ## tests on a real Slurm, its nodes in namespaces of this machine
	@scripts/test slurm $(PYTEST)

.PHONY: check
check: system .venv/.ready ## everything that CI runs
	@scripts/check

.PHONY: check-full
check-full: system .venv/.ready ## check, with the long matrices
	@scripts/check --full
