#!/usr/bin/env bash
# What becomes of a job when processes of it die, a link is cut or the disk is full, in a table. Its options: scripts/fault_drill.sh --help
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

is_help "$@" || ensure_venv requirements.txt
run_script experiments/fault_drill/fault_drill.py "$@"
