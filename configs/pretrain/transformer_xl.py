"""Transformer-XL (Dai et al. 2019): the next token from the row and from a memory of the text before it.

    bert-jax pretrain --config=transformer_xl --workdir=runs/transformer_xl \\
        --config.corpus.source=text_files --config.corpus.options.paths="('text/*.txt.gz',)"
    bert-jax pretrain --config=transformer_xl:tiny --workdir=runs/transformer_xl      # minutes on two CPU cores

``transformer_xl`` is the base model of WikiText-103, ``transformer_xl:large`` the large one. The figures are from
kimiyoung/transformer-xl, pytorch/run_wt103_base.sh, run_wt103_large.sh and train.py: 200,000 and 4,000,000 steps of 60
and 128 rows of 150 and 384 tokens, a memory of as many, Adam at 2.5e-4 that falls as a cosine, a warm-up of 0 and
16,000 steps, clipping at 0.25, dropout of 0.1 and 0.2. Here the base model has 64 rows, which 8 devices share. ``tiny``
has 2 layers x 128, rows and a memory of 64 tokens, and the text and the vocabulary of ``quickstart``.

Row b of a batch goes on where row b of the batch before ended: the whole text is one line, cut into as many parts as a
batch has rows. The memory is saved with the model, and the batch size cannot change in a run.

Three other things differ. Here the vocabulary has 50,000 pieces; there it has 267,735 words, which an adaptive softmax
groups by frequency. Here initial weights are drawn from a normal distribution cut at two standard deviations; there it
is not cut. There a test has a longer memory than training, of 640 and 1,600 tokens.
"""

from ml_collections import ConfigDict

from bert_jax.errors import UserError
from bert_jax.recipes import recipes

LENGTHS = {"base": 150, "large": 384, "tiny": 64}


def get_config(size: str = "base") -> ConfigDict:
    if size not in LENGTHS:
        raise UserError(f"no size {size!r}; there are {', '.join(LENGTHS)}")
    length, large, tiny = LENGTHS[size], size == "large", size == "tiny"
    config = recipes.derive("quickstart" if tiny else "roberta")
    config.objective = ConfigDict({"name": "ltr", "arrangement": "streams"})
    config.examples = ("The capital of France is", "He opened the door and")
    dropout = {"dropout_rate": 0.0 if tiny else 0.2 if large else 0.1, "attention_dropout_rate": 0.2 if large else 0.0}
    config.model = ConfigDict({"encoder": "transformer_xl", "size": size, "memory_length": length, **dropout})
    if tiny:
        config.phases = ConfigDict({"pretraining": {"num_steps": 2_000, "batch_size": 32, "max_length": length}})
        config.schedule = ConfigDict({"name": "linear", "peak_learning_rate": 6e-3, "warmup_steps": 100})
        return config
    config.model.dtype = "bfloat16"
    steps, rows = (4_000_000, 128) if large else (200_000, 64)
    config.phases = ConfigDict({"pretraining": {"num_steps": steps, "batch_size": rows, "max_length": length}})
    adam = {"name": "adamw", "eps": 1e-8, "weight_decay": 0.0, "clip_norm": 0.25, "bias_correction": "standard"}
    config.optimizer = ConfigDict(adam)
    warmup = 16_000 if large else 0
    config.schedule = ConfigDict({"name": "cosine", "peak_learning_rate": 2.5e-4, "warmup_steps": warmup})
    return config
