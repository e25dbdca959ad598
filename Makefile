SHELL := /usr/bin/env bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-builtin-rules --no-print-directory
.DEFAULT_GOAL := help

export PYTHONPATH := $(CURDIR)/scripts/lib:$(CURDIR)/cluster/host:$(CURDIR)/trainer/src
PY := .venv/bin/python

include $(sort $(wildcard scripts/make/*.mk))
