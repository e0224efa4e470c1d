#!/usr/bin/env -S bash -p
# usage: scripts/test.sh [ARGUMENT OF pytest]...     such as: scripts/test.sh tests/scripts/launch/test_cluster.py -x
#
# Makes .venv with the test dependencies, gets Fashion-MNIST, and runs linter, type checker and tests, two test files at a
# time, since many tests wait for processes; -n 0 runs one after the other. It ends with what was skipped, and why.
# VENV=.venv-3.13 PYTHON=/path/to/python3.13 tests with another Python in an environment of its own.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

answer_help "$@"
ensure_venv requirements-test.txt
"$root/scripts/get_data.sh"
cd "$root"
"$venv/bin/python" -m ruff check .
"$venv/bin/python" -m ruff format --check .
"$venv/bin/python" -m mypy # what pyproject.toml lists
# Each file runs in one process, since its tests share servers and jobs. Without arguments all of tests/ runs.
exec "$venv/bin/python" -m pytest -n 2 --dist loadfile --no-loadscope-reorder "$@"
