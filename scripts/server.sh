#!/usr/bin/env bash
# usage: scripts/server.sh
#
# A parameter server of a distributed job: keeps the global weights, or its part of them. Needs no GPU and no data.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if is_help "$@"; then
    usage && role_variables && exit
fi
no_arguments "$@"
run_role server
