"""A real training of a tiny model that obeys. For each line on stdin it does what the line says, and answers by a line of
JSON. test_real_histories.py gives the orders.

    obeying.py KIND SERIES [STEP]    begins with what the step holds, and answers what it has loaded

    save SCORE     takes some steps of training, answers what it will save, saves, and answers when the save is whole
    again SCORE    saves under the same number once more
    begin, end     as save; `begin` answers while an async save is under way
    evaluate FOLDER, convert FOLDER, hub FOLDER    writes into a step what an evaluation, a converter, the Hub's client do

The kind `helper` trains nothing: it is a notebook, or a command.
"""

import hashlib
import json
import os
import pathlib
import sys

STRIDE = 3  # steps of training from save to save; other numbers are for copies
PREFIXES = {"trainer": "checkpoint-", "trainer_deepspeed": "checkpoint-", "dcp": "step_", "accelerate": "step_",
            "megatron": "iter_"}  # fmt: skip
TRACKER = "latest_checkpointed_iteration.txt"
ZERO = {"train_micro_batch_size_per_gpu": "auto", "steps_per_print": 1 << 30, "zero_optimization": {"stage": 2},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "torch_adam": True}}}  # fmt: skip

if __name__ == "__main__":
    import deepspeed.utils.zero_to_fp32
    import torch
    import torch.distributed.checkpoint as dcp
    import torch.distributed.checkpoint.format_utils
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


def tell(**what):
    print(json.dumps(what), flush=True)


def weights_of(model):
    found = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        found.update(name.encode() + tensor.detach().float().numpy().tobytes())
    return found.hexdigest()


class Dcp:
    """A loop of its own; an async save is a thread."""

    def __init__(self, series, prefix):
        self.series, self.prefix, self.number = series, prefix, 0
        self.model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.prepare()

    def serve(self, step):
        self.train()  # so that the optimizer has a state to load into
        if step:
            self.load(step)
        tell(weights=weights_of(self.model))
        for order in orders():
            if order[0] in ("save", "begin"):
                self.number += STRIDE
            if order[0] != "end":
                self.train()
                tell(saving=self.number, weights=weights_of(self.model))
                self.begin(self.series / f"{self.prefix}{self.number}")
            if order[0] != "begin":
                self.end()
            tell(weights=weights_of(self.model), best=None)

    def train(self):
        self.optimizer.zero_grad()
        self.model(torch.randn(4, 64)).square().mean().backward()
        self.optimizer.step()

    def prepare(self):
        torch.distributed.init_process_group("gloo")

    def state(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "number": self.number}

    def begin(self, folder):
        self.future = dcp.async_save(self.state(), checkpoint_id=folder)

    def end(self):
        self.future.result()

    def load(self, step):
        state = self.state()
        dcp.load(state, checkpoint_id=step)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.number = state["number"]


class Accelerate(Dcp):
    def prepare(self):
        import accelerate

        self.accelerator = accelerate.Accelerator(cpu=True)
        self.model, self.optimizer = self.accelerator.prepare(self.model, self.optimizer)

    def begin(self, folder):
        self.accelerator.save_state(str(folder))

    def end(self):
        pass

    def load(self, step):
        self.accelerator.load_state(step)
        self.number = int(step.rpartition("_")[2]) // STRIDE * STRIDE


class Megatron(Dcp):
    """megatron-core's own writers: it forks for each save, and once more for each of its files."""

    def prepare(self):
        super().prepare()
        from megatron.core import dist_checkpointing
        from megatron.core.dist_checkpointing.strategies import async_utils
        from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy

        torch.cuda.synchronize, torch.cuda.current_device = (lambda *_: None), (lambda: "cpu")  # it knows GPUs only
        self.core, self.queue = dist_checkpointing, async_utils.AsyncCallsQueue()
        self.strategy = TorchDistSaveShardedStrategy("torch_dist", 1, thread_count=2)

    def state(self):
        moments = {f"{at}.{name}": value for at, of_one in self.optimizer.state_dict()["state"].items()
                   for name, value in of_one.items() if value.dim()}  # fmt: skip
        tensors = self.model.state_dict() | moments
        found = {name: self.core.ShardedTensor.from_rank_offsets(name, tensor) for name, tensor in tensors.items()}
        return found | {"iteration": self.number}

    def begin(self, folder):
        folder.mkdir(exist_ok=True)
        request = self.core.save(self.state(), str(folder), self.strategy, async_sharded_save=True)
        tracker, number = self.series / TRACKER, self.number
        request.add_finalize_fn(lambda: tracker.write_text(str(number)))  # as megatron.training does
        self.queue.schedule_async_request(request)

    def end(self):
        self.queue.maybe_finalize_async_calls(blocking=True)

    def load(self, step):
        state = self.core.load(self.state(), step)
        self.number = state["iteration"]
        self.model.load_state_dict({name: state[name] for name in self.model.state_dict()})


def serve_trainer(series, step, config):
    """`config`: of DeepSpeed."""
    import transformers

    from trainer_nvme import use_ranks_of_cpu

    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=64, n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0))
    scores = [0.0]

    class Obeying(transformers.TrainerCallback):
        until = 0

        def on_train_begin(self, args, state, control, **_):
            self.until = state.global_step
            tell(weights=weights_of(model))

        def on_step_begin(self, args, state, control, **_):
            if state.global_step < self.until:
                return
            for what, score in orders():
                scores[0] = float(score)
                if what == "save":
                    self.until = state.global_step + STRIDE
                    return
                self.on_evaluate(args, state, control)
                trainer._save_checkpoint(trainer.model_wrapped, None)
                self.on_save(args, state, control)
            os._exit(0)

        def on_step_end(self, args, state, control, **_):
            control.should_evaluate = control.should_save = state.global_step == self.until

        def on_evaluate(self, args, state, control, **_):
            tell(saving=state.global_step, weights=weights_of(model))

        def on_save(self, args, state, control, **_):
            tell(weights=weights_of(model), best=state.best_model_checkpoint)

    more = {"deepspeed": config, "accelerator_config": use_ranks_of_cpu()} if config else {"use_cpu": True}
    arguments = transformers.TrainingArguments(
        output_dir=series, max_steps=1 << 20, save_strategy="steps", save_steps=1 << 20, eval_strategy="steps",
        eval_steps=1 << 20, load_best_model_at_end=True, metric_for_best_model="score", greater_is_better=True,
        ignore_data_skip=True, logging_strategy="no", report_to="none", disable_tqdm=True,
        per_device_train_batch_size=2, learning_rate=1e-3, seed=os.getpid(), **more)  # fmt: skip
    data = [{"input_ids": [at, 1, 2, 3], "labels": [at, 1, 2, 3]} for at in range(8)]
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:2],
                                   compute_metrics=lambda _: {"score": scores[0]}, callbacks=[Obeying()])
    trainer.train(resume_from_checkpoint=step)


def write_into(folder, what):
    if what == "evaluate":
        (folder / "eval_results.json").write_text('{"eval_score": 0.5}')
    elif what == "hub":  # as upload_large_folder notes what it has uploaded
        from huggingface_hub import _local_folder

        for path in [path for path in folder.iterdir() if path.is_file()]:
            paths = _local_folder.get_local_upload_paths(folder, path.name)
            _local_folder.LocalUploadFileMetadata(size=path.stat().st_size, upload_mode="lfs").save(paths)
    elif any(folder.glob("global_step*")):
        deepspeed.utils.zero_to_fp32.convert_zero_checkpoint_to_fp32_state_dict(str(folder), str(folder))
    elif (folder / ".metadata").exists():
        dcp.format_utils.dcp_to_torch_save(folder, folder / "pytorch_model.bin")
    else:
        import safetensors.torch

        torch.save(safetensors.torch.load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")


def orders():
    """Those to a training. What anybody does to a step is done here."""
    for line in sys.stdin:
        what, *words = line.split()
        if what not in ("evaluate", "hub", "convert"):
            yield [what, *words]
            continue
        try:
            write_into(pathlib.Path(words[0]), what)
            tell(error="")
        except Exception as problem:  # noqa: BLE001 - the step is thin, or goes this moment
            tell(error=repr(problem))


def main(kind, series, step=None):
    torch.set_num_threads(1)
    torch.manual_seed(os.getpid())
    loops = {"dcp": Dcp, "accelerate": Accelerate, "megatron": Megatron}
    if kind in loops:
        loops[kind](pathlib.Path(series), PREFIXES[kind]).serve(step)
    elif kind == "helper":
        tell(weights="")
        list(orders())
    else:
        serve_trainer(series, step, ZERO if kind == "trainer_deepspeed" else None)


if __name__ == "__main__":
    main(*sys.argv[1:])
