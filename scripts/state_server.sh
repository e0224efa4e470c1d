#!/usr/bin/env bash
# usage: scripts/state_server.sh
#
# The state server of ESync: the workers report their progress to it, and it decides who goes on and who synchronises.
# One a job; any number of jobs, one after the other. Ctrl-C ends it.
#
#   STATE_SERVER_HOST   address that it listens on; 0.0.0.0: all of this host   (127.0.0.1)
#   STATE_SERVER_PORT   port that it listens on                                 (10010)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if is_help "$@"; then
    usage && exit
fi
no_arguments "$@"
python=$(project_python)
cd "$root/SimpleStateServer"
exec "$python" manage.py serve "${STATE_SERVER_HOST:-127.0.0.1}:${STATE_SERVER_PORT:-10010}"
