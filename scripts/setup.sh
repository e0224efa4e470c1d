#!/usr/bin/env -S bash -p
# usage: scripts/setup.sh [--test]
#
# Makes .venv from the pinned requirements.txt (with --test: from requirements-test.txt), unless it is there: then this
# takes no time and no network. PYTHON=/path/to/python3.13 chooses the Python, VENV=.venv-3.13 another folder.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if is_help "$@"; then
    usage
    exit
fi
requirements="requirements.txt"
if [[ "${1:-}" == --test ]]; then
    requirements="requirements-test.txt"
    shift
fi
no_arguments "$@"
ensure_venv "$requirements"
say "$venv is ready"
