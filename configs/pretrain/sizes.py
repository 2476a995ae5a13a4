"""Compares depths and widths on the same text, at equal steps, FLOPs or parameters (Devlin et al. 2019, table 6).

    bert-jax ablate --config=sizes --variants=L4_H128,L2_H64,L4_H64,L2_H128 --seeds=0,1,2 --workdir=runs/sizes
    bert-jax ablate --config=sizes --variants=L4_H128,L2_H64_flops,L4_H64_flops,L2_H128_flops --workdir=runs/flops
    bert-jax ablate --config=sizes --variants=L4_H128_even,L16_H64_even,L1_H256_even --workdir=runs/shapes

``L2_H64_flops`` is trained for as many more steps as make its FLOPs equal to those of ``L4_H128`` (of matrix products,
without attention's own, by Kaplan et al. 2020, section 2.1: 24 n d^2 a token, here with the head for the predicted
tokens). Text, rows, rate and steps are as in ``ablation``. With --finetune the table says what the sizes are worth
on small tasks.

The variants ``_even`` exchange depth for width: n d^2 is equal, so the layers have as many weights (786,432), and as
many FLOPs a token. Embeddings are 128 wide in all, as ELECTRA has them, projected to another width. Not equal: 1 x 256
has 1.46 M parameters and the others 1.36 M (heads and projection), and attention's own FLOPs, 4 n d L a token, make a
row of 64 cost a step 391 MFLOP in 16 x 64, 363 in 4 x 128 and 364 in 1 x 256.
"""

from ml_collections import ConfigDict

from bert_jax.recipes import recipes

SIZES = {f"L{layers}_H{width}": (layers, width) for width in (64, 128) for layers in (2, 4)}
LARGEST = "L4_H128"
EQUAL = "_flops"
EVEN = {f"L{layers}_H{width}_even": (layers, width) for layers, width in ((16, 64), (4, 128), (1, 256))}


def get_config(variant: str = LARGEST) -> ConfigDict:
    size = variant.removesuffix(EQUAL)
    if size not in SIZES and variant not in EVEN:
        raise ValueError(
            f"unknown variant {variant!r}; choose one of: {', '.join((*SIZES, *EVEN))}, or one of the first "
            f"{len(SIZES)} with {EQUAL} after it"
        )
    config, (layers, width) = recipes.derive("ablation"), (SIZES | EVEN)[size]
    more = _flops(LARGEST, config) / _flops(size, config) if variant.endswith(EQUAL) else 1.0
    del config.model.size
    if variant in EVEN:
        config.model.update(encoder="electra", embedding_size=SIZES[LARGEST][1])
    config.model.update(num_layers=layers, hidden_size=width, num_heads=width // 64, mlp_dim=4 * width)
    for phase in config.phases.values():
        phase.num_steps = round(phase.num_steps * more)
    config.schedule.warmup_steps = round(config.schedule.warmup_steps * more)
    config.training.eval_every_steps = config.checkpoints.every_steps = round(config.checkpoints.every_steps * more)
    return config


def _flops(size: str, config: ConfigDict) -> float:
    """Return the FLOPs of a token, forward."""
    layers, width = SIZES[size]
    predicted = 0.15 * 2 * width * (width + config.vocab.size)
    return 24 * layers * width**2 + predicted
