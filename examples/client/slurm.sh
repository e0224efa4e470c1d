#!/bin/bash
# usage: sbatch examples/client/slurm.sh
#
# One rank a node, on nodes of any speed; the first node has the state server, too.
#SBATCH --job-name=esync
#SBATCH --ntasks-per-node=1
#SBATCH --nodes=3
set -euo pipefail

MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR MASTER_PORT=29500 ESYNC_SERVER="$MASTER_ADDR:10010"
ESYNC_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')  # so that no other user's job speaks for this one
export ESYNC_TOKEN

python -m esync serve 0.0.0.0:10010 &
server=$!
trap 'kill "$server"' EXIT
for _ in {1..100}; do  # until it listens
    if (exec 3<>"/dev/tcp/$MASTER_ADDR/10010") 2>/dev/null; then break; fi
    sleep 0.2
done
# shellcheck disable=SC2016  # each node has its own rank
srun bash -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=0 exec python examples/client/images.py "$@"' images "$@"
