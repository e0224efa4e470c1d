#!/usr/bin/env -S bash -p
# Evaluates a network that a worker has saved, predicts with it, or exports it as ONNX. Its options: scripts/saved_model.sh --help
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

run_script scripts/saved_model.py "$@"
