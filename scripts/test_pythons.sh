#!/usr/bin/env -S bash -p
# usage: scripts/test_pythons.sh [ARGUMENT OF pytest]...     such as: scripts/test_pythons.sh tests/models/test_models.py
#
# Runs scripts/test.sh with every supported Python on this machine, each in an environment of its own (.venv-3.13 and so
# on), and prints which were found and which passed. Ends with 1 if one did not pass.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

answer_help "$@"

declare -A found=() result=()
mapfile -t candidates < <(python_candidates)
for candidate in "${candidates[@]}"; do
    if runs "$candidate" "$is_supported"; then
        number=$("$candidate" -c "$version")
        : "${found[$number]:=$(command -v "$candidate")}"
    fi
done
for number in "${versions[@]}"; do
    say "Python $number: ${found[$number]:-not found}"
done
[[ ${#found[@]} != 0 ]] || find_python # says how to get one

for number in "${versions[@]}"; do
    [[ -n "${found[$number]:-}" ]] || continue
    say "----------------------------------------------------------------------------------------- Python $number"
    result[$number]=passed
    PYTHON="${found[$number]}" VENV="$root/.venv-$number" "$root/scripts/test.sh" "$@" || result[$number]=failed
done
for number in "${versions[@]}"; do
    say "Python $number: ${result[$number]:-not found}"
done
[[ "${result[*]}" != *failed* ]]
