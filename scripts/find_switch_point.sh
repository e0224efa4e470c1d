#!/usr/bin/env -S bash -p
# Searches for the best switch point of Sync-Switch by trials. Its options: scripts/find_switch_point.sh --help
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

run_script experiments/switch_point/find_switch_point.py "$@"
