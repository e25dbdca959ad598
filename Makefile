SHELL := /usr/bin/env bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-builtin-rules --no-print-directory
.DEFAULT_GOAL := help

empty :=
export PYTHONPATH := $(subst $(empty) ,:,$(addprefix $(CURDIR)/,scripts/lib cluster/host trainer/src \
  sidecars/common/src sidecars/endpoint-registry/src sidecars/peer-watcher/src \
  sidecars/gym-server/src))
PY := .venv/bin/python

include $(sort $(wildcard scripts/make/*.mk))
