#!/usr/bin/env -S bash -p
# Sets up everything, runs the main job on this machine and draws figures. Its options: scripts/demo.sh --help
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

is_help "$@" || ensure_venv requirements.txt
run_script scripts/demo.py "$@"
