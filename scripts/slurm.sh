#!/usr/bin/env -S bash -p
# Runs a whole job on a cluster with Slurm. Its options: scripts/slurm.sh --help
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

run_script scripts/launch/slurm.py "$@"
