#!/usr/bin/env -S bash -p
# Runs a whole job by mpiexec. Its options: scripts/mpi.sh --help
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

run_script scripts/launch/mpi.py "$@"
