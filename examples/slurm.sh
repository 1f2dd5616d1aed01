#!/bin/bash
# Trains on all nodes of a SLURM job: sbatch --nodes 4 examples/slurm.sh train-lm config.yaml --out /shared/run
# What follows the script's name is a command of varla, or a Python file. One process a GPU; GPUS says how many a node has.
#SBATCH --job-name=varla
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
set -euo pipefail

if [ $# -eq 0 ]; then
    echo "error: give a command of varla, such as train-lm, or a Python file" >&2
    exit 2
fi
case $1 in
    *.py) program=("$@") ;;
    *) program=(-m varla "$@") ;;
esac
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
exec srun torchrun \
    --nnodes "$SLURM_NNODES" --nproc-per-node "${GPUS:-8}" \
    --rdzv-backend c10d --rdzv-endpoint "${hosts%%$'\n'*}:29500" --rdzv-id "$SLURM_JOB_ID" \
    "${program[@]}"
