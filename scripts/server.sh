#!/usr/bin/env -S bash -p
# usage: scripts/server.sh [-m MODE] [--exchange hub] [--start-timeout SECONDS]
#
# A server of a distributed job: holds the global weights, or its part of them. Needs no GPU and no data.
# -m: the job's mode. In ssp, wbsp, async-local, decoupled, backup and sync-switch, which need it, the server is the
# hub: the workers meet at its address, and there is no scheduler. With --exchange hub it is so in every mode; async
# needs that for ringmaster, ringleader and rescaled. The hub needs none of the job's other flags.
# --start-timeout: how long it waits for the job's other processes at the start, in seconds (600; 0: for
# ever).
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

run_role server "$@"
