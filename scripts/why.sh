#!/usr/bin/env -S bash -p
# Shows from a job's logs why it was slow. Its options: scripts/why.sh --help
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

run_script scripts/why.py "$@"
