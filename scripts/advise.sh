#!/usr/bin/env -S bash -p
# Says which machines to train on, and by which algorithm. Its options: scripts/advise.sh --help
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

run_script scripts/advise.py "$@"
