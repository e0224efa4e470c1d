#!/usr/bin/env -S bash -p
# usage: scripts/scheduler.sh [-m MODE] [--exchange hub] [--start-timeout SECONDS]
#
# The scheduler of a distributed job, one a job. The other processes meet at its address, and it ends with them.
# -m: the job's mode. In ssp, wbsp, async-local, decoupled, backup and sync-switch, and with --exchange hub, the
# scheduler has nothing to do, and ends at once: the workers meet at the server.
# --start-timeout: how long it waits for them at the start, in seconds (600; 0: for ever).
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

run_role scheduler "$@"
