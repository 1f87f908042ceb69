"""Trains the model of trainer_nvme.py by a loop of its own with accelerate, which saves by `save_state` and resumes by
`load_state`. Arguments and results are those of trainer_nvme.py.
"""

import json
import os
import signal
import sys

from ending import end_rank
from goes_on import state_of
from trainer import samples
from trainer_nvme import build_model, deepspeed_config, parse_arguments, use_ranks_of_cpu

BATCH = 2


def config_of(options):
    config = deepspeed_config(options)
    values = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
    return config | {"train_micro_batch_size_per_gpu": BATCH, "gradient_accumulation_steps": 1,
                     "optimizer": {"type": "AdamW", "params": values}}


def prepare(options):
    """Returns the accelerator, the engine and the data."""
    import accelerate
    import transformers

    use_ranks_of_cpu()
    accelerator = accelerate.Accelerator(
        deepspeed_plugin=accelerate.DeepSpeedPlugin(hf_ds_config=config_of(options)))
    model = build_model(transformers)
    data = list(samples(model.config.vocab_size))
    engine, _ = accelerator.prepare(model, accelerate.utils.DummyOptim(model.parameters()))
    return accelerator, engine, data


def batch_of(torch, data, step):
    first = (step * int(os.environ["WORLD_SIZE"]) + int(os.environ["RANK"])) * BATCH
    rows = [data[index % len(data)] for index in range(first, first + BATCH)]
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def main():
    options = parse_arguments()
    import deepspeed
    import torch

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(20_240_229 + (1 if options.resume else 0))  # a resume must not profit from the same random start
    deepspeed.init_distributed(dist_backend="gloo")
    accelerator, engine, data = prepare(options)
    checkpoint = os.path.join(options.output_dir, f"checkpoint-{options.save_steps}")
    if options.resume:
        accelerator.load_state(checkpoint)
    result = {"losses": [], "first": engine.global_steps}
    while engine.global_steps < options.steps:
        loss = engine(**batch_of(torch, data, engine.global_steps)).loss
        accelerator.backward(loss)  # and the optimizer's step
        result["losses"].append(float(loss).hex())
        if engine.global_steps == options.save_steps:
            accelerator.save_state(checkpoint)
        if engine.global_steps == options.kill_after:
            os.kill(os.getpid(), signal.SIGKILL)
    result["state"] = state_of(torch, deepspeed, engine)
    with open(f"{options.out}.{os.environ['RANK']}", "w", encoding="utf-8") as out:
        json.dump(result, out, indent=1, sort_keys=True)
    end_rank()


if __name__ == "__main__":
    sys.exit(main())
