"""Trains as one rank of several nodes on one machine: each node has a folder of its own, and saves a step a time there.

    nodes.py KIND --folders FOLDER,FOLDER --steps N --out OUT          KIND: zero3, zero2, trainer or dcp
    nodes.py zero3 --folders ... --resume TAG --steps N --out OUT   goes on from TAG in the folders, through ckptfs.deepspeed
    nodes.py zero2 --folders ... --data N --die-at TAG --out OUT    on other data; the first node dies in its save of TAG
    nodes.py KIND --load FOLDER --tag TAG --scratch FOLDER --out OUT   all ranks load a step from one shared folder

The trainers are real: DeepSpeed with node-local storage, a Hugging Face Trainer under DDP, FSDP with DCP; all on the
CPU with gloo. A node has the same number of ranks, LOCAL_WORLD_SIZE; the environment says the rest (deepspeed/harness.py).
The result of each rank is OUT.RANK: digests of its state by step, or of what was loaded.
"""

import argparse
import hashlib
import json
import os
import pathlib
import sys
import types

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "deepspeed"))

import torch
import torch.distributed

from ending import end_rank

WIDTH, LAYERS = 1024, 3  # its groups are swapped
STEPS = "steps"


def rank():
    return int(os.environ["RANK"])


def own_folder(folders):
    return folders.split(",")[rank() // int(os.environ["LOCAL_WORLD_SIZE"])]


def die(*_, **_named):
    """As by the OOM killer."""
    os._exit(137)


def sha256(tensor):
    return hashlib.sha256(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


# --- DeepSpeed, with what its trainings share (deepspeed/train.py)


def zero_config(options, nvme):
    import train

    config = train.deepspeed_config(types.SimpleNamespace(nvme=nvme, pipeline=False), WIDTH)
    if options.kind == "zero2":
        config["zero_optimization"] = {"stage": 2, "overlap_comm": False, "contiguous_gradients": True,
                                       "offload_optimizer": {"device": "cpu", "pin_memory": False}}
    config["checkpoint"] = {"use_node_local_storage": options.load is None}
    # What differs between nodes stands in the files of all ranks.
    config["comms_logger"] = {"enabled": False, "prof_ops": [f"node{rank() // int(os.environ['LOCAL_WORLD_SIZE'])}"]}
    return config


def zero_state(engine):
    """Digests of this rank's weights and moments."""
    import train

    found = {}
    if hasattr(engine.optimizer, "fp32_partitioned_groups_flat"):
        found, _ = train.group_tensors(torch, engine)
    else:
        for at, master in enumerate(engine.optimizer.single_partition_of_fp32_groups):
            found[f"{at}/fp32"] = sha256(master)
            for name, value in engine.optimizer.optimizer.state[master].items():
                if isinstance(value, torch.Tensor):
                    found[f"{at}/{name}"] = sha256(value)
    return found


def run_zero(options):
    import deepspeed
    import train

    torch.manual_seed(20_240_229 + (1 if options.resume else 0))  # a resume must not profit from the same random start
    deepspeed.init_distributed(dist_backend="gloo")
    folder = own_folder(options.folders) if options.folders else None
    config = zero_config(options, options.scratch or folder)
    engine = train.build(torch, deepspeed, config, WIDTH, LAYERS)
    if options.load:
        loaded, _ = engine.load_checkpoint(options.load, tag=options.tag)
        if not loaded:
            raise SystemExit(f"nodes: nothing to load in {options.load}")
        return {f"global_step{engine.global_steps}": zero_state(engine)}
    states = {}
    if options.resume:
        import ckptfs.deepspeed

        ckptfs.deepspeed.load_checkpoint(engine, os.path.join(folder, STEPS), tag=options.resume)
        states[options.resume] = zero_state(engine)
    for step in range(engine.global_steps, options.steps):
        train.train(torch, engine, WIDTH, step, 1, rank() + 1000 * options.data, None)
        if options.die_at == f"global_step{engine.global_steps}" and rank() < int(os.environ["LOCAL_WORLD_SIZE"]):
            torch.save = die
        engine.save_checkpoint(os.path.join(folder, STEPS))
        states[f"global_step{engine.global_steps}"] = zero_state(engine)
    return states


# --- a Trainer under DDP


def steps_of_trainer(options):
    """A run that loads goes one step further."""
    return int(options.tag.rsplit("-")[-1]) + 1 if options.load else options.steps


def run_trainer(options):
    import transformers

    import trainer

    torch.manual_seed(20_240_229)
    model = trainer.build(64, 2)
    folder = options.scratch or os.path.join(own_folder(options.folders), STEPS)
    resumed = options.load and os.path.join(options.load, options.tag)
    arguments = transformers.TrainingArguments(
        output_dir=folder, max_steps=steps_of_trainer(options), save_strategy="no" if resumed else "steps",
        save_steps=1, logging_strategy="no",
        report_to="none", use_cpu=True, disable_tqdm=True, per_device_train_batch_size=2, learning_rate=1e-3, seed=11,
        save_on_each_node=options.on_each_node, ddp_backend="gloo")
    data = list(trainer.samples(model.config.vocab_size))
    states = {}

    def note(step, model):
        names = [(name.removeprefix("module."), value) for name, value in model.named_parameters()]
        states[f"checkpoint-{step}"] = {name: sha256(value) for name, value in names}

    class Noting(transformers.TrainerCallback):
        def on_save(self, _arguments, state, *_others, model, **_named):
            note(state.global_step, model)

        def on_train_begin(self, _arguments, state, *_others, model, **_named):
            if resumed:
                note(state.global_step, model)

    made = transformers.Trainer(model=model, args=arguments, train_dataset=data, callbacks=[Noting()])
    made.train(resume_from_checkpoint=resumed)
    return states


# --- FSDP and DCP


def run_dcp(options):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    torch.distributed.init_process_group("gloo")
    torch.manual_seed(8 if options.load else 7)
    model = torch.nn.Sequential(torch.nn.Linear(301, 500), torch.nn.ReLU(), torch.nn.Linear(500, 64))
    fully_shard(model, mesh=init_device_mesh("cpu", (torch.distributed.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def learn(step):
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(1000 * step + rank())
        model(torch.randn(8, 301, generator=generator)).square().mean().backward()
        optimizer.step()

    def state():
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments, "step": 0}

    def digests(saved):
        moments = {f"{name}.{kind}": value for name, of_one in saved["optimizer"]["state"].items()
                   for kind, value in of_one.items()}
        tensors = saved["model"] | moments
        return {name: sha256(value.full_tensor() if isinstance(value, DTensor) else value)
                for name, value in tensors.items()}

    if options.load:
        learn(0)
        saved = state()
        dcp.load(saved, checkpoint_id=os.path.join(options.load, options.tag))
        return {options.tag: digests(saved)}
    states = {}
    for step in range(1, options.steps + 1):
        learn(step)
        saved = state() | {"step": step}
        dcp.save(saved, checkpoint_id=os.path.join(own_folder(options.folders), STEPS, f"step-{step}"))
        states[f"step-{step}"] = digests(saved)
    return states


RUNS = {"zero3": run_zero, "zero2": run_zero, "trainer": run_trainer, "dcp": run_dcp}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=sorted(RUNS))
    parser.add_argument("--folders", help="of the nodes, with commas between them")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--on-each-node", action="store_true", help="the Trainer's save_on_each_node")
    parser.add_argument("--load", metavar="FOLDER", help="load from here, and do not train")
    parser.add_argument("--tag", help="the step to load")
    parser.add_argument("--resume", metavar="TAG", help="DeepSpeed: each node loads this step from its own folder first")
    parser.add_argument("--data", type=int, default=0, help="DeepSpeed: which data it trains on")
    parser.add_argument("--die-at", metavar="TAG", help="DeepSpeed: the first node dies when it saves this step")
    parser.add_argument("--scratch", help="where a run that loads may write")
    parser.add_argument("--out", required=True, help="the result, .RANK is appended")
    options = parser.parse_args()
    torch.set_num_threads(1)
    states = RUNS[options.kind](options)
    with open(f"{options.out}.{rank()}", "w", encoding="utf-8") as out:
        json.dump(states, out)
    end_rank()


if __name__ == "__main__":
    sys.exit(main())
