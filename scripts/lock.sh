#!/usr/bin/env -S bash -p
# usage: scripts/lock.sh [--upgrade]
#
# Writes requirements.txt and requirements-test.txt, the complete lists of packages for Python 3.10 to 3.14 with the
# files' SHA-256, from requirements.in and requirements-test.in, and requirements-torch.txt, for Python 3.11. To change a
# version, edit those and run this. Indirect dependencies keep their versions where possible; --upgrade takes the newest.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if is_help "$@"; then
    usage
    exit
fi
upgrade=()
if [[ "${1:-}" == --upgrade ]]; then
    upgrade=(--upgrade)
    shift
fi
no_arguments "$@"

tools=$(mktemp -d)
trap 'rm -r "$tools"' EXIT
"$(find_python)" -m venv "$tools"
"$tools/bin/python" -m pip install --disable-pip-version-check --quiet uv==0.13.9

# MXNet's own metadata without numpy<2: with a few names put back (trainer/engine.py) it runs on numpy 2.
cat >"$tools/uv.toml" <<'END'
[[dependency-metadata]]
name = "mxnet"
version = "1.9.1"
requires-dist = ["numpy", "requests>=2.20,<3", "graphviz>=0.8.1,<0.9"]
END

every=(--universal --python-version 3.10) # all Pythons and platforms at once

# usage: compile requirements.txt argument...
compile() {
    "$tools/bin/uv" pip compile --quiet --config-file "$tools/uv.toml" \
        --generate-hashes --custom-compile-command scripts/lock.sh "${upgrade[@]}" --output-file "$1" "${@:2}"
}

cd "$root"
compile requirements.txt requirements.in "${every[@]}"
# A package in both lists has one version.
compile requirements-test.txt requirements-test.in --constraints requirements.txt "${every[@]}"
sed -i '1i -r requirements.txt' requirements-test.txt
# PyPI has the build for CUDA alone. A folder with wheels, PIP_FIND_LINKS, serves where the page cannot be reached.
page=https://download.pytorch.org/whl/cpu/torch/
compile requirements-torch.txt requirements-torch.in --constraints requirements-test.txt \
    --python-version 3.11 --python-platform x86_64-manylinux_2_28 --find-links "${PIP_FIND_LINKS:-$page}"
cat - requirements-torch.txt >"$tools/torch.txt" <<END
# PyTorch for networks of torch (docs/own-job.md), for Python 3.11 on Linux x86_64: scripts/setup.sh --torch. This is the
# build for the CPU. Of another Python:  .venv/bin/pip install torch==2.13.0 --index-url ${page%torch/}
# PyPI's build (pip install torch==2.13.0) brings CUDA's libraries, some GB, and works too.
--find-links $page
END
mv "$tools/torch.txt" requirements-torch.txt
