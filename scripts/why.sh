#!/usr/bin/env bash
# Says why a job was slow, from its logs. Its options: scripts/why.sh --help
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

run_script scripts/why.py "$@"
