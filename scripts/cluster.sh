#!/usr/bin/env -S bash -p
# Runs a whole job on several hosts. Its options: scripts/cluster.sh --help
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

run_script scripts/launch/cluster.py "$@"
