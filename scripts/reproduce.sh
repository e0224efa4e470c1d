#!/usr/bin/env -S bash -p
# Repeats the published experiments in virtual time, beside the published numbers. Its options: scripts/reproduce.sh --help
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

is_help "$@" || ensure_venv requirements.txt
run_script experiments/reproduction/reproduce.py "$@"
