"""Prints new tokens a second of generation, ours and transformers', for the same random GPT-2 on this machine.

    PYTHONPATH=. .venv-parity/bin/python -m tests.benchmarks.generate_speed

The GPT-2 has 4 layers of 256 and 50,257 pieces. Both libraries keep keys and values, read the same prompts of 32
tokens, write 64 tokens without an end token, and use all cores. Runs alternate; the best of five counts, after one that
compiles. Processor seconds are printed too, for machines that do other work. The tokens are compared.
"""

from __future__ import annotations

import sys
import tempfile
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers

from bert_jax.generation.search import Search, Tokens
from bert_jax.generation.settings import Settings
from bert_jax.generation.steppers import LeftToRight
from bert_jax.interchange.hugging_face import import_model
from tests.interchange.heads import TOKENIZER

VOCABULARY, PROMPT, NEW, RUNS = 50_257, 32, 64, 5
CASES: tuple[tuple[int, dict[str, Any]], ...] = ((1, {}), (8, {}), (1, {"method": "beam", "beams": 4}))


def made(folder: str) -> Any:
    """Return a random GPT-2 of transformers, saved in ``folder``."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=4, n_embd=256, n_head=4, bos_token_id=None, eos_token_id=None)
    model = transformers.GPT2LMHeadModel(config).eval()
    model.save_pretrained(folder)
    return model


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        theirs = made(folder)
        TOKENIZER.save(f"{folder}/vocab.txt")  # any: the tokens are ids
        ours = import_model(folder)
    params = jax.device_put(ours.params)
    print(f"{jax.devices()[0].device_kind}, torch {torch.__version__} with {torch.get_num_threads()} threads")
    for rows, options in CASES:
        prompts = np.random.default_rng(0).integers(0, VOCABULARY, (rows, PROMPT))
        settings = Settings(max_new_tokens=NEW, **options)
        run = jax.jit(Search(LeftToRight(ours.config), settings, Tokens(VOCABULARY)))
        batch = {"input_ids": jnp.asarray(prompts, jnp.int32), "attention_mask": jnp.ones((rows, PROMPT), jnp.int32)}
        beams = {"num_beams": settings.beams} if options else {}

        def write_ours(run: Any = run, batch: Any = batch, rows: int = rows) -> np.ndarray:
            return np.asarray(run({"params": params}, jnp.int32(0), batch, jnp.arange(rows)).ids[:, 0])

        def write_theirs(prompts: Any = prompts, beams: Any = beams) -> np.ndarray:
            given = {"attention_mask": torch.ones(prompts.shape).long(), "do_sample": False, "max_new_tokens": NEW}
            with torch.inference_mode():
                return theirs.generate(torch.tensor(prompts), **given, **beams)[:, PROMPT:].numpy()

        best: dict[str, float] = {}
        least: dict[str, float] = {}  # processor seconds
        for number in range(RUNS + 1):
            for name, write in (("ours", write_ours), ("transformers", write_theirs)):
                start, processor = time.perf_counter(), time.process_time()
                ids = write()
                seconds, processor = time.perf_counter() - start, time.process_time() - processor
                if number:
                    best[name] = min(seconds, best.get(name, seconds))
                    least[name] = min(processor, least.get(name, processor))
                if name == "ours":
                    first = ids
        same = np.mean(first == ids)
        rates = ", ".join(
            f"{name} {rows * NEW / best[name]:,.0f} (of processor time {rows * NEW / least[name]:,.0f})"
            for name in best
        )
        print(f"{rows} prompts, {settings.method}: new tokens a second {rates}; {same:.0%} of the tokens are the same")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
