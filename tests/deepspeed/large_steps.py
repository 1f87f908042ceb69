"""Makes a step of many ranks and tensors, which are tiny, as torch and DeepSpeed write them.

Of DCP each tensor has a chunk of each rank, and Adam's two moments; of ZeRO 3 a rank's part of all tensors is one.
"""

import argparse
import collections
import io
import pathlib
import pickle

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties,
                                                   TensorStorageMetadata)

COLUMNS = 4


def parameter(number):
    return f"model.layers.{number}.self_attn.q_proj.weight"


def write_dcp(step, ranks, tensors):
    buffer = io.BytesIO()
    torch.save(torch.arange(float(COLUMNS)).reshape(1, COLUMNS), buffer)
    chunk = buffer.getvalue()  # the same for each
    keys = {}
    for number in range(tensors):
        keys[f"model.{parameter(number)}"] = ("model", parameter(number))
        for state in ("exp_avg", "exp_avg_sq"):
            keys[f"optim.state.{parameter(number)}.{state}"] = ("optim", "state", parameter(number), state)
    tensors, places = {}, {}
    for at, name in enumerate(keys):
        chunks = [ChunkStorageMetadata(torch.Size([rank, 0]), torch.Size([1, COLUMNS])) for rank in range(ranks)]
        tensors[name] = TensorStorageMetadata(TensorProperties(dtype=torch.float32), torch.Size([ranks, COLUMNS]), chunks)
        for rank in range(ranks):
            index = MetadataIndex(name, torch.Size([rank, 0]), rank)
            places[index] = _StorageInfo(f"__{rank}_0.distcp", at * len(chunk), len(chunk))
    for rank in range(ranks):
        (step / f"__{rank}_0.distcp").write_bytes(chunk * len(keys))
    with open(step / ".metadata", "wb") as file:
        pickle.dump(Metadata(tensors, keys, places), file)


def write_zero(step, ranks, tensors):
    shapes = collections.OrderedDict((parameter(number), torch.Size([ranks, COLUMNS])) for number in range(tensors))
    flat = torch.arange(float(COLUMNS * tensors))
    config = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}
    model = {"module": {}, "buffer_names": [], "optimizer": None, "param_shapes": [shapes], "shared_params": {},
             "frozen_param_shapes": {}, "frozen_param_fragments": {}, "dp_world_size": ranks, "mp_world_size": 1,
             "ds_config": config, "ds_version": "0.19.8"}
    state = {"step": torch.tensor(1.0), "exp_avg": flat + 1, "exp_avg_sq": flat + 2}
    optimizer = {"zero_stage": 3, "partition_count": ranks, "fp32_flat_groups": [flat],
                 "optimizer_state_dict": {"state": {0: state}, "param_groups": []}}
    for rank in range(ranks):
        torch.save(model, step / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        torch.save({"optimizer_state_dict": optimizer}, step / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", type=pathlib.Path)
    parser.add_argument("kind", choices=("dcp", "zero"))
    parser.add_argument("ranks", type=int)
    parser.add_argument("tensors", type=int)
    options = parser.parse_args()
    options.step.mkdir(parents=True)
    (write_dcp if options.kind == "dcp" else write_zero)(options.step, options.ranks, options.tensors)


if __name__ == "__main__":
    main()
