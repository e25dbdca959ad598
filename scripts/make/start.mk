##@ Start

# Only these groups of tools (folders of tools/ or wheels); empty = all.
TOOLS ?=

.PHONY: help
help: ## list the targets
	@awk -f scripts/make/help.awk $(sort $(wildcard scripts/make/*.mk))

.PHONY: system
system: ## install the Debian packages that the host provider and image builds need (root)
	@scripts/system-packages

.venv/.ready: requirements/dev.txt
	@scripts/venv

.PHONY: venv
venv: .venv/.ready

.PHONY: tools
tools: .venv/.ready ## build or unpack every pinned program into ./bin
	@$(PY) -m tandem.tools make $(TOOLS)

.PHONY: tools-check
tools-check: .venv/.ready ## wanted and found versions of ./bin
	@$(PY) -m tandem.tools check
