"""Ettin's encoders (Weller et al. 2025, arXiv 2507.11412): ModernBERT's model and data flow in six sizes.

    bert-jax pretrain --config=ettin:68m --workdir=runs/ettin \\
        --config.corpus.source=text_files --config.corpus.options.paths="('text/*.txt.gz',)"

``ettin:17m``, ``32m``, ``68m``, ``150m`` (the default), ``400m`` and ``1b``. The values are from
JHU-CLSP/ettin-encoder-vs-decoder, pretraining/configs/standard: 1.7e12 tokens in rows of 1,024; 2.5e11 in rows of 7,999
at a rate that falls by 1 - sqrt to a half; 5e10 from there to 0.04 of that half, with 15 % of the tokens predicted
instead of 30 %. Of 1b, the last two stages are a third as long. Batches have 4,608 rows. In long rows, the base of
rotary positions is 160,000 in all layers (of 17m, in layers that see all).

Rates and decays: 3e-3 and 3e-4 up to 68m, 8e-4 and 1e-5 (150m), 5e-4 and 1e-5 (400m), 5e-4 and 5e-5 (1b); the decay
is divided by the peak here. The warm-up is as long as ModernBERT-base's, 3e9 tokens. Here rows are packed; there each
row is one document.
"""

from ml_collections import ConfigDict

from bert_jax.errors import UserError
from bert_jax.recipes import recipes

RATES = {"17m": (3e-3, 3e-4), "32m": (3e-3, 3e-4), "68m": (3e-3, 3e-4), "150m": (8e-4, 1e-5), "400m": (5e-4, 1e-5)}
RATES |= {"1b": (5e-4, 5e-5)}


def get_config(size: str = "150m") -> ConfigDict:
    if size not in RATES:
        raise UserError(f"no size {size!r}; there are {', '.join(RATES)}")
    config = recipes.derive("modernbert")
    peak, decay = RATES[size]
    config.model.size = f"ettin_{size}"
    thetas = {"global_theta": 160_000.0} | ({} if size == "17m" else {"local_theta": 160_000.0})
    long = {"batch_size": 4_608, "max_length": 7_999, "model": thetas}
    falling = {"name": "warmup_stable_decay", "warmup_steps": 0, "decay_fraction": 1.0, "decay": "one_minus_sqrt"}
    last = {**long, "masking": {"rate": 0.15}, "model": {"global_theta": 160_000.0, "local_theta": 160_000.0}}
    third = 1 / 3 if size == "1b" else 1
    config.phases = ConfigDict(
        {
            "phase1": {"num_tokens": 1_700_000_000_000, "batch_size": 4_608, "max_length": 1_024},
            "phase2": {
                "num_tokens": int(250_000_000_000 * third),
                **long,
                "schedule": {**falling, "peak_learning_rate": peak, "final_fraction": 0.5},
            },
            "phase3": {
                "num_tokens": int(50_000_000_000 * third),
                **last,
                "schedule": {**falling, "peak_learning_rate": peak / 2, "final_fraction": 0.04},
            },
        }
    )
    config.optimizer.weight_decay = decay / peak
    config.schedule.peak_learning_rate = peak
    config.training.eval_phase = "phase1"
    return config
