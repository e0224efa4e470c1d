#!/usr/bin/env -S bash -p
# usage: scripts/container.sh state-server
#        scripts/container.sh scheduler | server [-m MODE] [--exchange hub]
#        scripts/container.sh worker [FLAG OF main.py]...
#        scripts/container.sh FLAG OF main.py...           such as: -m local -c 1 -n lenet -e 1000
#        scripts/container.sh COMMAND [ARGUMENT]...        such as: python main.py --help
#
# The entry point of the Docker image: one image for every process of a job, started as by scripts/state_server.sh,
# scheduler.sh, server.sh and worker.sh on a host, with the same environment variables. Flags alone go to main.py, which
# trains alone (-m local), or takes the role that DMLC_ROLE names.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if is_help "${1:-}"; then # not of the command that it runs
    usage && role_variables && exit
fi
case "${1:-}" in
state-server) exec "$root/scripts/state_server.sh" "${@:2}" ;;
scheduler | server | worker) exec "$root/scripts/$1.sh" "${@:2}" ;;
-* | "") cd "$root" && run_python main.py "$@" ;;
*) exec "$@" ;;
esac
