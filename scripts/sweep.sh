#!/usr/bin/env -S bash -p
# Makes a grid of runs: modes, seeds, values of flags. Its options: scripts/sweep.sh --help
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

run_script scripts/sweep.py "$@"
