#!/usr/bin/env -S bash -p
# Makes a table of what jobs do when processes die, a link is cut or the disk is full. Its options: scripts/fault_drill.sh --help
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

is_help "$@" || ensure_venv requirements.txt
run_script experiments/fault_drill/fault_drill.py "$@"
