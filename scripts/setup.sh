#!/usr/bin/env -S bash -p
# usage: scripts/setup.sh [--test] [--torch]
#
# Makes .venv from the pinned requirements.txt (with --test: from requirements-test.txt), unless it is there: then this
# takes no time and no network. --torch adds PyTorch's build for the CPU (requirements-torch.txt), which is there from
# then on. PYTHON=/path/to/python3.13 chooses the Python, VENV=.venv-3.13 another folder.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

answer_help "$@"
requirements="requirements.txt"
extra=""
for option in "$@"; do
    case "$option" in
    --test) requirements="requirements-test.txt" ;;
    --torch) extra="requirements-torch.txt" ;;
    *) no_arguments "$option" ;;
    esac
done
ensure_venv "$requirements"
[[ -z "$extra" ]] || unless_fresh add_extra "$extra"
say "$venv is ready"
