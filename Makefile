SHELL := /usr/bin/env bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-builtin-rules --no-print-directory
.DEFAULT_GOAL := help

empty :=
export PYTHONPATH := $(subst $(empty) ,:,$(addprefix $(CURDIR)/,scripts/lib cluster/host trainer/src \
  $(sort $(wildcard sidecars/*/src))))
PY := .venv/bin/python

include $(sort $(wildcard scripts/make/*.mk))
