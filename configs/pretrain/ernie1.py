"""ERNIE 1.0 (Sun et al. 2019, arXiv 1904.09223): tokens are masked, then phrases, then named entities.

    bert-jax pretrain --config=ernie1 --workdir=runs/ernie1 --config.corpus.options.paths="('zh/*.txt.gz',)" \\
        --config.corpus.columns.phrases.path=phrases.txt --config.corpus.columns.entities.path=entities.txt

Each line of these files is a phrase or an entity (THUOCL's lists can be used). The columns that mark them are made when
the corpus is built. A token outside of phrases or entities is a unit by itself. Whether a unit is masked is drawn
separately for each unit.

The values are from PaddlePaddle/ERNIE, ERNIE/script/pretrain.sh and batching.py: 1,000,000 steps of 8 x 8,192
tokens at length 512, masking rate 0.15, Adam with epsilon 1e-8 and weight decay 0.01, a peak learning rate of 1e-4
after 5,000 steps; ReLU, layer norms with epsilon 1e-5, 513 positions, a vocabulary of 18,000. How many steps each of
the three stages had is not published: here each has a third. Two things are left out: the dialogue task, which has no
public code, and the random choice by which some files of the later stages are masked by single tokens. One thing
differs: here a row holds as many pairs as fit (``packing``), which do not attend to each other; there each row holds
one pair and padding. On XNLI (test) the published model reached 78.4, and BERT 77.2.
"""

from ml_collections import ConfigDict

from bert_jax.recipes import recipes


def get_config() -> ConfigDict:
    config = recipes.derive("bert_base:base")
    config.vocab = ConfigDict({"path": "", "size": 18_000, "lowercase": True})
    config.corpus.options = ConfigDict({"paths": (), "language": "zh"})
    lexicon = {"annotator": "lexicon", "path": ""}
    config.corpus.columns = ConfigDict({"phrases": {**lexicon}, "entities": {**lexicon}})
    config.model = ConfigDict(
        {"encoder": "ernie", "size": "base", "max_length": 513, "layer_norm_eps": 1e-5, "dtype": "bfloat16"}
    )
    config.objective.masking = ConfigDict({"strategy": "bernoulli"})
    stage = {"batch_size": 128, "max_length": 512}
    config.phases = ConfigDict(
        {
            "stage1_basic": {"num_steps": 333_334, **stage},
            "stage2_phrase": {"num_steps": 333_333, **stage, "masking": {"unit": "phrases"}},
            "stage3_entity": {"num_steps": 333_333, **stage, "masking": {"unit": "entities"}},
        }
    )
    config.optimizer = ConfigDict({"name": "adamw", "eps": 1e-8, "bias_correction": "standard"})
    config.schedule = ConfigDict({"name": "linear_from_zero", "peak_learning_rate": 1e-4, "warmup_steps": 5_000})
    config.training.eval_phase = "stage1_basic"  # single tokens in all stages, so that evaluations can be compared
    config.examples = ("中国的首都是北[MASK]。",)
    return config
