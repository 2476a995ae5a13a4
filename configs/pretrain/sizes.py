"""Four depths and widths on one text, at equal steps and at equal FLOPs (Devlin et al. 2019, table 6).

    bert-jax ablate --config=sizes --variants=L2_H128,L4_H128,L2_H256,L4_H256 --seeds=0,1,2 --workdir=runs/sizes
    bert-jax ablate --config=sizes --variants=L4_H256,L2_H128_flops,L4_H128_flops,L2_H256_flops --workdir=runs/flops

``L2_H128_flops`` is trained for as many more steps as make its FLOPs equal to those of ``L4_H256`` (of matrix products,
without attention's own, by Kaplan et al. 2020, section 2.1: 24 n d^2 a token, here with the head for the predicted
tokens). Text, rows and rate are those of ``ablation``; it has half the steps. With --finetune the table says what the
sizes are worth on small tasks.
"""

from ml_collections import ConfigDict

from bert_jax.models.encoders.bert import SIZES
from bert_jax.runs import recipes

NAMES = ("L2_H128", "L4_H128", "L2_H256", "L4_H256")
STEPS = {"phase1": 600, "phase2": 300}
EQUAL = "_flops"


def get_config(variant: str = "L2_H128") -> ConfigDict:
    size = variant.removesuffix(EQUAL)
    if size not in NAMES:
        raise ValueError(
            f"unknown variant {variant!r}; choose one of: {', '.join(NAMES)}, or one with {EQUAL} after it"
        )
    config = recipes.derive("ablation")
    more = _flops(NAMES[-1], config) / _flops(size, config) if variant.endswith(EQUAL) else 1.0
    for name, steps in STEPS.items():
        config.phases[name].num_steps = round(steps * more)
    config.model.size = size
    config.schedule.warmup_steps = round(75 * more)
    config.training.eval_every_steps = config.checkpoints.every_steps = round(300 * more)
    return config


def _flops(size: str, config: ConfigDict) -> float:
    """Return the FLOPs of a token, forward."""
    layers, width = SIZES[size]["num_layers"], SIZES[size]["hidden_size"]
    predicted = 0.15 * 2 * width * (width + config.vocab.size)
    return 24 * layers * width**2 + predicted
