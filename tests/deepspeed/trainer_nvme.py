"""Trains a small model with the real Trainer and DeepSpeed, both devices on NVMe, up to its end or a kill -9.

One process is one rank. The result is one JSON file for each rank: the exact loss of each step, and a digest of each
tensor of the final state. `resume_from_checkpoint=True` is all that a resume says.
"""

import argparse
import importlib
import json
import os
import signal
import sys

from ending import end_rank
from goes_on import state_of
from trainer import samples

WIDTH, LAYERS = 320, 2


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nvme", required=True)
    parser.add_argument("--output-dir", required=True)
    parser.add_argument("--steps", type=int, required=True, help="the last step")
    parser.add_argument("--save-steps", type=int, required=True)
    parser.add_argument("--kill-after", type=int, help="kill -9 of this rank itself when this step has ended")
    parser.add_argument("--resume", action="store_true", help="resume_from_checkpoint=True")
    parser.add_argument("--tell-begin", action="store_true", help="the state with which the training begins, too")
    parser.add_argument("--callback", action="store_true", help="with ckptfs.transformers.Callback")
    parser.add_argument("--import-patch", action="store_true", help="import ckptfs.patch after DeepSpeed")
    parser.add_argument("--scheduler", action="store_true", help="DeepSpeed's scheduler, not the Trainer's")
    parser.add_argument("--pipeline", action="store_true", help="pipelined swapping of the optimizer")
    parser.add_argument("--out", required=True, help="the result, .RANK is appended")
    return parser.parse_args()


def deepspeed_config(options):
    config = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "steps_per_print": 1 << 30,
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": False,
            "contiguous_gradients": True,
            "sub_group_size": 1_000_000,
            "stage3_param_persistence_threshold": 4096,
            "stage3_gather_16bit_weights_on_model_save": True,
            "offload_optimizer": {"device": "nvme", "nvme_path": options.nvme, "pin_memory": False,
                                  "buffer_count": 12 if options.pipeline else 4,
                                  "pipeline_read": options.pipeline, "pipeline_write": options.pipeline},
            "offload_param": {"device": "nvme", "nvme_path": options.nvme, "pin_memory": False, "buffer_count": 8,
                              "buffer_size": 4 * WIDTH * 16 * WIDTH},
        },
        "aio": {"block_size": 1 << 20, "queue_depth": 8, "intra_op_parallelism": 1, "single_submit": False,
                "overlap_events": True},
    }
    if options.scheduler:
        config["scheduler"] = {"type": "WarmupLR", "params": {"warmup_min_lr": 1e-4, "warmup_max_lr": "auto",
                                                              "warmup_num_steps": "auto", "warmup_type": "linear"}}
    return config


def build_model(transformers):
    config = transformers.GPT2Config(vocab_size=16 * WIDTH, n_positions=64, n_embd=WIDTH, n_layer=LAYERS, n_head=5,
                                     bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config)


def use_ranks_of_cpu():
    """Without a GPU accelerate takes DeepSpeed's ranks for one process, unless it is told the backend."""
    import accelerate
    from transformers.trainer_pt_utils import AcceleratorConfig
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    accelerate.PartialState(backend="gloo")
    return AcceleratorConfig(use_configured_state=True)


def build_trainer(transformers, options, result):
    arguments = transformers.TrainingArguments(
        output_dir=options.output_dir, max_steps=options.steps, save_strategy="steps", save_steps=options.save_steps,
        logging_strategy="no", report_to="none", disable_tqdm=True, per_device_train_batch_size=2, learning_rate=1e-3,
        warmup_steps=2, seed=11, deepspeed=deepspeed_config(options), accelerator_config=use_ranks_of_cpu())

    class Trainer(transformers.Trainer):
        """As it is, and the exact loss of each step is noted."""

        def training_step(self, *given, **named):
            loss = super().training_step(*given, **named)
            result["losses"].append(float(loss).hex())
            return loss

    class Ending(transformers.TrainerCallback):
        def on_train_begin(self, args, state, control, **_):
            import deepspeed
            import torch
            if options.tell_begin:
                result["began"] = state_of(torch, deepspeed, trainer.deepspeed)

        def on_step_begin(self, args, state, control, **_):
            result.setdefault("first", state.global_step)

        def on_step_end(self, args, state, control, **_):
            if state.global_step == options.kill_after:
                os.kill(os.getpid(), signal.SIGKILL)

        def on_train_end(self, args, state, control, **_):
            import deepspeed
            import torch
            result["state"] = state_of(torch, deepspeed, trainer.deepspeed)

    callbacks = [Ending()]
    if options.callback:
        import ckptfs.transformers
        callbacks.append(ckptfs.transformers.Callback())
    model = build_model(transformers)
    trainer = Trainer(model=model, args=arguments, train_dataset=list(samples(model.config.vocab_size)),
                      callbacks=callbacks)
    return trainer


def main():
    options = parse_arguments()
    import deepspeed
    import torch
    import transformers
    if options.import_patch:
        importlib.import_module("ckptfs.patch")

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(20_240_229 + (1 if options.resume else 0))  # a resume must not profit from the same random start
    deepspeed.init_distributed(dist_backend="gloo")
    result = {"losses": []}
    trainer = build_trainer(transformers, options, result)
    trainer.train(resume_from_checkpoint=options.resume or None)
    with open(f"{options.out}.{os.environ['RANK']}", "w", encoding="utf-8") as out:
        json.dump(result, out, indent=1, sort_keys=True)
    end_rank()


if __name__ == "__main__":
    sys.exit(main())
