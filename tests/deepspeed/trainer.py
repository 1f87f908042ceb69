"""Trains a small model, most of it frozen, with the real, unmodified Hugging Face Trainer on the CPU; a checkpoint a step.

The model comes from a configuration, its weights from a seed, so that two runs agree to the last bit. The result is one
JSON file: a digest of each checkpoint's tensors, and what each save took in time, in space and on the device.
"""

import argparse
import hashlib
import json
import os
import sys

from train import Cost

TENSORS = ("model.safetensors", "optimizer.pt")  # the rest names paths, or times


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output-dir", required=True)
    parser.add_argument("--steps", type=int, default=10, help="the last step")
    parser.add_argument("--keep", type=int, default=None, help="save_total_limit: how many checkpoints stay")
    parser.add_argument("--resume", metavar="DIR", help="the checkpoint to go on from; last: the Trainer's own choice")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--measure", nargs=2, metavar=("FOLDER", "STAT"),
                        help="what each save costs on the file system of FOLDER, as its block device's STAT file counts")
    parser.add_argument("--log", action="store_true", help="log the loss of each step")
    parser.add_argument("--behind", action="store_true", help="save by ckptfs.transformers.Callback")
    parser.add_argument("--paced", action="store_true", help="wait for a line on stdin before each step, answer by one")
    parser.add_argument("--out", required=True, help="the result")
    return parser.parse_args()


def build(width, layers):
    """GPT-2; its normalisations and the attention of its last block are trained, all else is frozen."""
    import transformers

    config = transformers.GPT2Config(vocab_size=16 * width, n_positions=64, n_embd=width, n_layer=layers,
                                     n_head=width // 64, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config)
    last = f"transformer.h.{layers - 1}.attn"
    for name, parameter in model.named_parameters():
        parameter.requires_grad = ".ln_" in name or name.startswith(last)
    return model


def samples(vocabulary):
    import torch

    generator = torch.Generator().manual_seed(7)
    for _ in range(64):
        words = torch.randint(vocabulary, (32,), generator=generator)
        yield {"input_ids": words, "labels": words}


def digests(checkpoint, names=TENSORS):
    found = {}
    for name in names:
        with open(os.path.join(checkpoint, name), "rb") as file:
            found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def space(folder):
    status = os.statvfs(folder)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def make_trainer(options, model, saves):
    import transformers

    class Trainer(transformers.Trainer):
        """As it is, and each of its saves is noted."""

        def _save_checkpoint(self, *arguments, **named):
            cost = Cost(options.measure)
            noted = cost.of(lambda: super(Trainer, self)._save_checkpoint(*arguments, **named))
            if options.measure:
                noted["used"] = space(options.measure[0])
            checkpoint = os.path.join(options.output_dir, f"checkpoint-{self.state.global_step}")
            noted |= {"step": self.state.global_step, "digests": digests(checkpoint)}
            if options.log:
                noted["loss"] = self.state.log_history[-1]["loss"]
            saves.append(noted)
            if options.paced:
                print(json.dumps(noted), flush=True)

    class Paced(transformers.TrainerCallback):
        def on_step_begin(self, *_arguments, **_named):
            if options.paced and not sys.stdin.readline():
                raise SystemExit("trainer: nobody wants another step")

    arguments = transformers.TrainingArguments(
        output_dir=options.output_dir, max_steps=options.steps, save_strategy="steps", save_steps=1,
        save_total_limit=options.keep, logging_strategy="steps" if options.log else "no", logging_steps=1,
        report_to="none", use_cpu=True, disable_tqdm=True, per_device_train_batch_size=2, learning_rate=1e-3, seed=11)
    data = list(samples(model.config.vocab_size))
    callbacks = [Paced()]
    if options.behind:
        import ckptfs.transformers
        callbacks.append(ckptfs.transformers.Callback())
    return Trainer(model=model, args=arguments, train_dataset=data, callbacks=callbacks)


def main():
    options = parse_arguments()
    import torch

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(20_240_229)
    model = build(options.width, options.layers)
    result = {"saves": [], "frozen": sum(p.numel() * 4 for p in model.parameters() if not p.requires_grad)}
    if options.measure:
        Cost(options.measure).settle()
        result["used"] = space(options.measure[0])
    trainer = make_trainer(options, model, result["saves"])
    if options.paced:
        print(json.dumps("ready"), flush=True)
    trainer.train(resume_from_checkpoint=True if options.resume == "last" else options.resume)
    result["history"] = trainer.state.log_history
    with open(options.out, "w", encoding="utf-8") as out:
        json.dump(result, out, indent=1)


if __name__ == "__main__":
    sys.exit(main())
