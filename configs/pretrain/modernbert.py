"""ModernBERT (Warner et al. 2024, arXiv 2412.13663) in three stages of one run: short rows, long rows, a decay.

    bert-jax pretrain --config=modernbert --workdir=runs/modernbert \\
        --config.corpus.source=text_files --config.corpus.options.paths="('text/*.txt.gz',)"

``modernbert`` is the base model, ``modernbert:large`` the large one; ``modernbert:tiny`` and ``modernbert:small`` go
through the same stages in minutes and hours on a small machine, with values of our own.

The values are from AnswerDotAI/ModernBERT, yamls/modernbert (branch pretraining_documentation):
1. 1.719e12 tokens in rows of 1,024 at a constant rate of 8e-4 (large 5e-4), after a warm-up of 3e9 (2e9) tokens. The
   batch grows to 4,608 (4,928) rows in equal steps over the first 5e10 (1e10) tokens. Rotary positions have a base of
   10,000 in all layers.
2. 2.5e11 tokens in rows of 8,192, 576 (616) a batch, at 3e-4 (5e-5), with a base of 160,000 in layers that see all.
3. 5e10 tokens at a rate that falls by 1 - sqrt to 0.001 of that.
Throughout, 30 % of the tokens are predicted; held-out rows are masked at 15 %. StableAdamW with b2 0.98 and without
clipping: the published decay, 1e-5 at the peak, is divided by the peak here. Dropout is 0.1 on what attention adds.

Weight decay in stages 2 and 3 depends on how a restart is read. There a step takes rate / max_lr * weight_decay from a
weight (StableAdamW of optimi with decouple_lr), where max_lr is the rate that the optimizer was made with. A stage
begins from the last checkpoint of the stage before, and ``restart_override`` in main.py replaces rate and weight_decay
of the checkpoint, but not max_lr: that stays the peak of stage 1. This reading is taken here. Base has 1e-5 in all
stages, so a step takes 1e-5 / 8e-4 = 0.0125 times the rate, as here. Large has 1e-6 in stages 2 and 3, so a step takes
1e-6 / 5e-4 = 0.002 times the rate; here it is 0.02 as in stage 1, because a run has one weight decay. If max_lr were
the peak of the new stage, large would be as here, and base would have 1e-5 / 3e-4 = 0.033.

Five things differ. There [CLS] and [SEP] are masked as other tokens are; here they never are. There a batch's loss is a
mean over the rows of each device; here over all predicted tokens. There the decoder's bias begins with random values,
here with 0. By the paper, large was set back after 9e11 tokens of stage 1 and continued at 5e-5; here, as in its files,
the rate is 5e-4 throughout stage 1. The published large model began with the weights of base, tiled; here with random
values, unless they are tiled too: ``bert-jax grow --init=runs/modernbert --size=large --output=DIR``, and
``--init=DIR`` here.
"""

from typing import Any

from ml_collections import ConfigDict

from bert_jax.recipes import recipes
from bert_jax.rows.batch_warmup import batch_warmup

SHORT, LONG = 1_024, 8_192


def stages(size: str) -> tuple[float, dict[str, Any], dict[str, Any]]:
    """Return the decay of weights, the schedule of the run, and the phases of its three stages."""
    large = size == "large"
    peak, peak_of_long = (5e-4, 5e-5) if large else (8e-4, 3e-4)
    step, full, warmup = (448, 4_928, 10_000_000_000) if large else (768, 4_608, 50_000_000_000)
    growing = batch_warmup(range(step, full, step), warmup, SHORT)
    of_full = {"num_tokens": 1_719_000_000_000 - warmup, "batch_size": full, "max_length": SHORT}
    decay = {"decay_fraction": 1.0, "decay": "one_minus_sqrt", "final_fraction": 0.001}
    schedule = {"name": "warmup_stable_decay", "peak_learning_rate": peak_of_long, "warmup_steps": 0}
    long = {"max_length": LONG, "model": {"global_theta": 160_000.0}}
    phases = {
        **growing,
        f"phase1_{len(growing) + 1}": of_full,
        "phase2": {"num_tokens": 250_000_000_000, "batch_size": 616 if large else 576, **long, "schedule": schedule},
        "phase3": {
            "num_tokens": 50_000_000_000,
            "batch_size": 624 if large else 576,
            **long,
            "schedule": schedule | decay,
        },
    }
    tokens = 2_000_000_000 if large else 3_000_000_000
    return 1e-5 / peak, {"peak_learning_rate": peak, "warmup_tokens": tokens}, phases


def small_stages(size: str) -> tuple[float, dict[str, Any], dict[str, Any]]:
    """Return the same for a model that a small machine trains, with values of our own."""
    steps = 10 if size == "small" else 1
    schedule = {"name": "warmup_stable_decay", "peak_learning_rate": 1e-3, "warmup_steps": 0}
    long = {"batch_size": 8, "max_length": 512, "model": {"global_theta": 160_000.0}, "schedule": schedule}
    decay = {"decay_fraction": 1.0, "decay": "one_minus_sqrt", "final_fraction": 0.001}
    phases = {
        "phase1": {"num_steps": 1_600 * steps, "batch_size": 32, "max_length": 128},
        "phase2": {"num_steps": 200 * steps, **long},
        "phase3": {"num_steps": 200 * steps, **long, "schedule": schedule | decay},
    }
    return 0.01, {"peak_learning_rate": 3e-3, "warmup_fraction": 0.1}, phases


def get_config(size: str = "base") -> ConfigDict:
    config = recipes.derive("roberta")
    is_small = size in ("tiny", "small")
    weight_decay, schedule, phases = (small_stages if is_small else stages)(size)
    config.vocab = ConfigDict(
        {"path": "", "kind": "byte_bpe", "size": 8_000 if is_small else 50_368, "lowercase": False}
    )
    config.objective = ConfigDict(
        {"name": "mlm", "arrangement": "sentences", "packing": "packed", "masking": {"rate": 0.3}}
    )
    dtype = "float32" if is_small else "bfloat16"
    config.model = ConfigDict({"encoder": "modernbert", "size": size, "dtype": dtype, "global_theta": 10_000.0})
    config.phases = ConfigDict(phases)
    config.optimizer = ConfigDict({"name": "stable_adamw", "weight_decay": weight_decay})
    config.schedule = ConfigDict({"name": "warmup_stable_decay", **schedule})
    config.training.eval_masking = ConfigDict({"rate": 0.15})
    config.training.eval_phase = list(phases)[-3]  # short rows in all stages, so that evaluations can be compared
    if is_small:
        config.loader.num_workers = 0
        config.training.update({"log_every_steps": 50, "eval_every_steps": 200, "eval_rows": 512})
        config.checkpoints = ConfigDict({"every_steps": 200, "keep": 3, "keep_every_steps": 400})
    return config
