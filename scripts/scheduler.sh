#!/usr/bin/env bash
# usage: scripts/scheduler.sh
#
# The scheduler of a distributed job: one a job. The other processes meet at its address, and it ends with them.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if is_help "$@"; then
    usage && role_variables && exit
fi
no_arguments "$@"
run_role scheduler
