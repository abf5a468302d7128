#!/bin/bash
#SBATCH --job-name=ajet
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --gpus-per-node=4
#SBATCH --mem=0
#SBATCH --time=24:00:00
# A training over the nodes of a SLURM job:  sbatch examples/cluster/slurm.sh job.json [arguments of ajet client run]
# Named by the environment, on a disk that all nodes see: AJET (folder of the .venv of a checkout), AJET_VERL_PYTHON
# (docs/cluster.md) and AJET_HOME; so are job and model. The same sbatch goes on from the last checkpoint.
set -euo pipefail
: "${AJET:?}" "${AJET_VERL_PYTHON:?}" "${AJET_HOME:?}"
job=${1:?a job as JSON}
shift
export AJET_VERL_PYTHON AJET_HOME SRUN_CPUS_PER_TASK=$SLURM_CPUS_ON_NODE
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0 RAY_worker_niceness=0 RAY_AUTH_TOKEN
RAY_AUTH_TOKEN=$(od -An -v -tx1 -N32 /dev/urandom | tr -d ' \n')
ray=$(dirname "$AJET_VERL_PYTHON")/ray
server=${AJET_NAME:-cluster}
mkdir -p "$AJET_HOME"

trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT  # Ray ends with this script, on all nodes
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
on_head=(srun --overlap --nodes=1 --ntasks=1 --nodelist="$head")
ip=$("${on_head[@]}" hostname -I | awk '{print $1}')
address=$ip:$((20000 + SLURM_JOB_ID % 10000))

"${on_head[@]}" "$ray" start --head --node-ip-address "$ip" --port "${address#*:}" --include-dashboard false --block &
until "${on_head[@]}" "$ray" status --address "$address" >/dev/null 2>&1; do
    kill -0 $! || { echo "Ray did not start on $head; its own words are above" >&2; exit 1; }
    sleep 2
done
if ((SLURM_JOB_NUM_NODES > 1)); then
    srun --overlap --nodes=$((SLURM_JOB_NUM_NODES - 1)) --ntasks=$((SLURM_JOB_NUM_NODES - 1)) --exclude="$head" \
        "$ray" start --address "$address" --block &
fi

own=$AJET_HOME/$server.json  # the same job, at the address of this one
"$AJET/bin/python" -c 'import json, sys
job = json.load(open(sys.argv[1]))
print(json.dumps({**job, "backend": "verl", "verl": {**(job.get("verl") or {}), "address": sys.argv[2]}}))
' "$job" "$address" > "$own"
"${on_head[@]}" bash -ec 'ajet=$0; server=$1; own=$2; shift 2
"$ajet" swarm start --job "$own" --name "$server"
trap "\"$ajet\" swarm stop --server \"$server\"" EXIT
"$ajet" client run --server "$server" "$@"' "$AJET/bin/ajet" "$server" "$own" "$@"
