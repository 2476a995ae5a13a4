"""Both orders at once: masked tokens and next tokens, with one head (GPT-BERT, arXiv 2410.24159), small.

    bert-jax pretrain --config=gpt_bert --workdir=runs/gpt_bert
    bert-jax ablate --config=gpt_bert --variants=masked,hybrid,causal --seeds=0,1,2 --workdir=runs/orders

A masked token is predicted at the position before it (``mlm_shifted``), where the next token is predicted in the other
batches (``ltr``). 15 of 16 batches are masked and one is causal, the ratio that Charpentier and Samuel 2024 take;
``gpt_bert:masked`` has masked batches alone, ``gpt_bert:causal`` causal batches alone, and ``gpt_bert:half`` as many of
both.

Text, model and optimizer are those of ``clm_mlm``, so that a run takes minutes on two CPU cores. The published models
are LTG-BERT with gates of attention, and their script has LAMB with a rate of 1.41e-2, a masking rate that falls from
0.3 to 0.15 in the run, rows of 128, then 256, then 512, and batches that mix both orders; none of this is here.
transformers has no class whose head reads the position before a mask, so nothing is exported.
"""

from ml_collections import ConfigDict

from bert_jax.errors import UserError
from bert_jax.recipes import recipes

MASKED, CAUSAL = {"name": "mlm_shifted"}, {"name": "ltr"}
# The model reads as the first member by name does.
VARIANTS = {
    "hybrid": {"members": {"both_sides": {**MASKED, "share": 15}, "left_to_right": {**CAUSAL, "share": 1}}},
    "half": {"members": {"both_sides": {**MASKED, "share": 1}, "left_to_right": {**CAUSAL, "share": 1}}},
    "masked": MASKED,
    "causal": CAUSAL,
}


def get_config(variant: str = "hybrid") -> ConfigDict:
    if variant not in VARIANTS:
        raise UserError(f"no variant {variant!r}; there are {', '.join(VARIANTS)}")
    config = recipes.derive("clm_mlm")
    config.objective = ConfigDict({"arrangement": "sentences", "packing": "packed", **VARIANTS[variant]})
    config.phases = ConfigDict({"phase1": {"num_steps": 1000, "batch_size": 64, "max_length": 32}})
    config.export = variant == "causal"
    return config
