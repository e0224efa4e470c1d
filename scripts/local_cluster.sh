#!/usr/bin/env -S bash -p
# Runs a whole job on this machine. Its options: scripts/local_cluster.sh --help
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

run_script scripts/launch/local_cluster.py "$@"
