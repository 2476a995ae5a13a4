"""ELECTRA (Clark et al. 2020): a discriminator that finds the tokens which a small generator has replaced.

    bert-jax pretrain --config=electra --workdir=runs/electra \\
        --config.corpus.source=text_files --config.corpus.options.paths="('text/*.txt.gz',)"

``electra:small`` (the default), ``electra:base`` and ``electra:large``. Sizes, rows, masks, peaks of the rate and
10,000 steps of warm-up are from google-research/electra, configure_pretraining.py; the steps of ``base`` (766,000)
and ``large`` (400,000; 1,750,000 for the released model) from its flops_computation.py. 15 % of the tokens are
predicted, of large 25 %; each becomes [MASK] with probability 0.85 and else stays. The generator has a quarter of the
widths (of base a third), and as many layers; the discriminator's loss counts 50 times. The released small model had a
generator as large as itself (``--config.objective.generator_size=1``) and took 4 million steps.

Four things differ. Here no position of a row is drawn twice. Here a row is one segment of whole sentences; there two,
of which one may be empty. There the decay of later steps lowers the rate of the warm-up too, by up to 1 %. There the
projection of embeddings and the last layer begin with other values; here all kernels with a deviation of 0.02.

The run exports the discriminator, which is what is fine-tuned; ``bert-jax export --as=ElectraForMaskedLM`` writes the
generator. Published fine-tuning has a rate of 1e-4 (large 5e-5) for the head, and 0.8 times as much for each layer
further down (large 0.9). It reached 81.3 (small, the released model), 88.8 (base) and 90.9 (large) on the development
set of MNLI (README.md of google-research/electra).
"""

from ml_collections import ConfigDict

from bert_jax.recipes import recipes


def get_config(size: str = "small") -> ConfigDict:
    config = recipes.derive("bert_base")
    is_large = size == "large"
    masking = {"rate": 0.25 if is_large else 0.15, "mask_share": 0.85, "random_share": 0.0}
    share = 1 / 3 if size == "base" else 1 / 4
    config.objective = ConfigDict(
        {"name": "replaced_tokens", "packing": "packed", "masking": masking, "generator_size": share}
    )
    config.model = ConfigDict({"encoder": "electra", "size": size, "dtype": "bfloat16"})
    steps, rows, length = {"base": (766_000, 256, 512), "large": (400_000, 2_048, 512)}.get(size, (1_000_000, 128, 128))
    config.phases = ConfigDict({"phase1": {"num_steps": steps, "batch_size": rows, "max_length": length}})
    config.schedule = ConfigDict(
        {
            "name": "linear_from_zero",
            "peak_learning_rate": 5e-4 if size == "small" else 2e-4,
            "warmup_steps": 10_000,
        }
    )
    return config
