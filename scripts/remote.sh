#!/usr/bin/env -S bash -p
# usage: scripts/remote.sh
#
# The agent that scripts/cluster.sh starts over ssh on a host. Its processes end with the connection. Not for users.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

answer_help "$@"
no_arguments "$@"
# A container or a conda environment may do without .venv, but not without what it would hold.
has_packages='import sys; from importlib.util import find_spec; sys.exit(not (find_spec("mxnet") or find_spec("django")))'
[[ -x "$venv/bin/python" ]] || runs "$(project_python)" "$has_packages" ||
    die "$root has no .venv yet: run scripts/setup.sh there"
run_script scripts/launch/remote.py
