#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=1
# A job that mounts a store of its own on its node, without root and without a prolog (docs/clusters.md).
set -eu
folder=/local/$USER # on an XFS of the node
store=$folder/store
ckpt=$folder/ckpt

# The mount is in a mount namespace of the job, so the node never sees it. `srun` would leave the namespace.
if [ "${1-}" != inside ]; then
  mkdir -p "$folder"
  mkdir -p -m 555 "$ckpt" # nothing can be written there without the mount
  exec unshare --user --map-current-user --keep-caps --mount bash "$0" inside
fi

ckptfs mount "$store" "$ckpt"
trap 'ckptfs umount "$ckpt"' EXIT
python3 train.py --output_dir "$ckpt/runs/my-model"
