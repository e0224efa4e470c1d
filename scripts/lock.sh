#!/usr/bin/env -S bash -p
# usage: scripts/lock.sh [--upgrade]
#
# Writes requirements.txt and requirements-test.txt, the complete lists of packages for Python 3.10 to 3.14 with the
# files' SHA-256, from requirements.in and requirements-test.in, and requirements-torch.txt, an extra beside them. To
# change a version, edit the .in files and run this. Indirect dependencies keep their versions where possible; --upgrade
# takes the newest.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

answer_help "$@"
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

# What PyTorch's build for the CPU says in its metadata; PyPI's build adds CUDA's libraries.
[[dependency-metadata]]
name = "torch"
requires-dist = [
    "filelock",
    "typing-extensions>=4.10.0",
    "setuptools>=77.0.3",
    "sympy>=1.13.3",
    "networkx>=2.5.1",
    "jinja2",
    "fsspec>=0.8.5",
]
END

# Resolves for all Pythons and platforms at once. usage: compile requirements.txt argument...
compile() {
    "$tools/bin/uv" pip compile --quiet --config-file "$tools/uv.toml" --universal --python-version 3.10 \
        --generate-hashes --custom-compile-command scripts/lock.sh "${upgrade[@]}" --output-file "$1" "${@:2}"
}

cd "$root"
compile requirements.txt requirements.in
# A package in both lists has one version.
compile requirements-test.txt requirements-test.in --constraints requirements.txt
sed -i '1i -r requirements.txt' requirements-test.txt
# PyPI's build stands for the one for the CPU, which PyPI lacks: pin and checksums come from requirements-torch.in.
sed -n 's/+cpu.*//p' requirements-torch.in >"$tools/torch.in"
compile requirements-torch.txt "$tools/torch.in" --constraints requirements-test.txt --no-emit-package torch
needs=$(sed '/^$/,$d' requirements-torch.txt) # without the comment that torch is left out
cat >requirements-torch.txt <<END
# PyTorch's build for the CPU, which scripts/setup.sh --torch adds; PyTorch's own page has it (--find-links). The build
# for CUDA, whose libraries are some GB, is on PyPI:  .venv/bin/pip install $(cat "$tools/torch.in")
--find-links https://download.pytorch.org/whl/cpu/torch/
$(grep -v '^#' requirements-torch.in)
    # via -r requirements-torch.in
$needs
END
