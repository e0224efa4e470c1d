#!/usr/bin/env -S bash -p
# usage: scripts/setup.sh [--test] [--torch]
#
# Makes .venv from the pinned requirements.txt (with --test: from requirements-test.txt), unless it is there: then this
# takes no time and no network. --torch adds PyTorch for the CPU (requirements-torch.txt), with Python 3.11. PYTHON=/path/to/python3.13 chooses the Python, VENV=.venv-3.13 another folder.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if is_help "$@"; then
    usage
    exit
fi
requirements="requirements.txt"
extra=""
while [[ $# -gt 0 ]]; do
    case $1 in
        --test) requirements="requirements-test.txt" ;;
        --torch) extra="requirements-torch.txt" ;;
        *) break ;;
    esac
    shift
done
no_arguments "$@"
ensure_venv "$requirements"
if [[ -n "$extra" ]]; then
    [[ $("$venv/bin/python" -c "$version") == 3.11 ]] ||
        die "$extra is locked for Python 3.11: $venv/bin/pip install torch==2.13.0" \
            "--index-url https://download.pytorch.org/whl/cpu"
    ensure_venv "$extra"
fi
say "$venv is ready"
