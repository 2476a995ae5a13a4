"""Pretrains a BERT with transformers' Trainer as ``run_mlm`` sets it up, for some seconds; and judges exported models.

python -m tests.benchmarks.race.trainer train FOLDER SECONDS RATE [tiny]
python -m tests.benchmarks.race.trainer judge FOLDER MODEL ...

FOLDER has vocab.txt, blocks.npy and heldout.npz. Each call prints one JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tests.benchmarks.race.recipe import RATE, ROWS, SHAPE, TINY, TINY_ROWS

WARMUP, COMPILING = 0.06, 10  # share of the seconds; steps before the clock starts
CUDA = torch.cuda.is_available()


class Blocks(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """The rows of a file."""

    def __init__(self, path: Path):
        self.rows = np.load(path, mmap_mode="r")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict[str, list[int]]:
        return {"input_ids": self.rows[i].tolist()}


class Clock(transformers.TrainerCallback):
    """Starts when the step is compiled, gives the rate by the time that has passed, and stops the training."""

    def __init__(self, seconds: float):
        self.seconds, self.start = seconds, 0.0

    def rate(self, step: int) -> float:
        if not self.start:
            return 1e-3
        passed = min(1.0, (time.monotonic() - self.start) / self.seconds)
        return passed / WARMUP if passed < WARMUP else (1 - passed) / (1 - WARMUP)

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if state.global_step == COMPILING:
            if CUDA:
                torch.cuda.synchronize()
            self.start = time.monotonic()
        control.should_training_stop = bool(self.start) and time.monotonic() - self.start >= self.seconds


def train(folder: Path, seconds: float, peak: float, tiny: bool) -> dict[str, float]:
    """Train, write the model to ``folder/trainer``, and return how many steps it took, and for how long."""
    born, shape = time.monotonic(), TINY if tiny else SHAPE
    torch.set_float32_matmul_precision("high")
    tokenizer = transformers.BertTokenizerFast(str(folder / "vocab.txt"))
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        num_hidden_layers=shape["num_layers"],
        hidden_size=shape["hidden_size"],
        num_attention_heads=shape["num_heads"],
        intermediate_size=4 * shape["hidden_size"],
    )
    model, clock = transformers.BertForMaskedLM(config), Clock(seconds)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=peak, fused=CUDA)
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "trainer.tmp"),
        per_device_train_batch_size=TINY_ROWS if tiny else ROWS,
        max_steps=1_000_000,
        bf16=CUDA,
        torch_compile=CUDA,
        dataloader_num_workers=8 if CUDA else 0,
        dataloader_pin_memory=CUDA,
        dataloader_drop_last=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        max_grad_norm=1.0,
        use_cpu=not CUDA,
    )
    trainer = transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=Blocks(folder / "blocks.npy"),
        data_collator=transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=RATE),
        callbacks=[clock],
        optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, clock.rate)),
    )
    trainer.train()
    took, steps = time.monotonic() - clock.start, trainer.state.global_step - COMPILING
    model.save_pretrained(folder / "trainer")
    return {"steps": steps, "seconds": took, "before": clock.start - born}


@torch.no_grad()
def judge(folder: Path, names: list[str]) -> dict[str, dict[str, float]]:
    """Return the loss and the accuracy of each model on the masked held-out rows."""
    rows, found = np.load(folder / "heldout.npz"), {}
    device = "cuda" if CUDA else "cpu"
    for name in names:
        model = transformers.AutoModelForMaskedLM.from_pretrained(name).eval().to(device)
        loss = hits = count = 0.0
        for first in range(0, len(rows["labels"]), ROWS):
            batch = {key: torch.from_numpy(rows[key][first : first + ROWS].astype(np.int64)) for key in rows.files}
            labels = batch.pop("labels").to(device)
            logits = model(**{key: values.to(device) for key, values in batch.items()}).logits.float()
            asked = labels >= 0
            loss += torch.nn.functional.cross_entropy(logits[asked], labels[asked], reduction="sum").item()
            hits += (logits[asked].argmax(-1) == labels[asked]).sum().item()
            count += asked.sum().item()
        found[name] = {"loss": loss / count, "accuracy": hits / count, "parameters": model.num_parameters()}
    return found


if __name__ == "__main__":
    verb, folder, *rest = sys.argv[1:]
    if verb == "train":
        print(json.dumps(train(Path(folder), float(rest[0]), float(rest[1]), rest[2:] == ["tiny"])))
    else:
        print(json.dumps(judge(Path(folder), rest)))
