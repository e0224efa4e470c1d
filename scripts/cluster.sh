#!/usr/bin/env bash
# A whole job on several hosts. See --help, or the text at the head of cluster.py.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

run_script scripts/launch/cluster.py "$@"
