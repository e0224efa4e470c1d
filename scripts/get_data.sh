#!/usr/bin/env -S bash -p
# Gets Fashion-MNIST into data/fashion-mnist. Its options: scripts/get_data.sh --help
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

run_script scripts/get_data.py "$@" # needs no installed package
