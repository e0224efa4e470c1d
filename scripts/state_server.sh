#!/usr/bin/env -S bash -p
# usage: scripts/state_server.sh [option...]
#
# The state server of ESync, WBSP and Sync-Switch: the workers report their progress to it, and it decides which train
# on and which synchronise. Workers that sum among themselves (--exchange ring) meet there. It serves any number
# of jobs at once. Ctrl-C ends it.
#
#   --journal DIR                    what it has to know, should it be restarted, of jobs that survive lost workers
#                                    (logs/.journal/PORT)
#   --begin-anew                     sets that aside: all of these workers have ended, and others begin
#   --max-connections N              open at a time; beyond, the one that was idle for longest closes    (10000)
#   --max-connections-per-address N  likewise, of one address                                            (4096)
#   --request-timeout S              seconds in which a request must arrive                              (10)
#   --idle-timeout S                 seconds without a request after which a connection is closed        (300)
#
#   STATE_SERVER_HOST   address that it listens on; 0.0.0.0: all of this host, :: its IPv6 ones too (127.0.0.1)
#   STATE_SERVER_PORT   port that it listens on                                 (10010)
#   ESYNC_TOKEN         when set, calls that change anything need it: set it for the workers too
#   ESYNC_HOSTS         with a token: names, beside this host's and any address, by which its page may be read
#   ESYNC_POLICY        rule of a job that a published worker begins            (preprint)
#   ESYNC_MAX_JOBS      most jobs; the oldest that has ended makes room for the next  (64)
#   ESYNC_LOG_LEVEL     debug, info, warning, error or critical                 (info)
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

answer_help "$@"
[[ "${1:-}" == --* ]] || no_arguments "$@"
if [[ "${STATE_SERVER_PORT:-}" == *://* ]]; then
    say "STATE_SERVER_PORT=$STATE_SERVER_PORT is Kubernetes' variable of a service, no port to listen on: 10010 it is"
    unset STATE_SERVER_PORT
fi
cd "$root/SimpleStateServer"
run_python manage.py serve "${STATE_SERVER_HOST:-127.0.0.1}:${STATE_SERVER_PORT:-10010}" "$@"
