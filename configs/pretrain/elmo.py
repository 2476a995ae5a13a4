"""ELMo (Peters et al. 2018): two language models, left to right and right to left, whose vectors are features.

    bert-jax pretrain --config=elmo --workdir=runs/elmo \\
        --config.corpus.source=text_files --config.corpus.options.paths="('text/*.txt.gz',)"
    bert-jax pretrain --config=elmo:tiny --workdir=runs/elmo      # minutes on two CPU cores

``elmo`` is the published model, ``elmo:medium`` and ``elmo:small`` its two smaller ones. The figures are from
allenai/bilm-tf, bin/train_elmo.py and bilm/training.py: 10 epochs of the 1 Billion Word Benchmark, 3 x 128 rows of 20
tokens a step whose state goes on in the next step, two layers of 4,096 cells projected to 512 in each direction, cells
and projections clipped at 3, dropout of 0.1, Adagrad at a constant rate of 0.2. There gradients are of 20 times the
loss, their norm is clipped at 10, and the sums of Adagrad begin at 1; here the loss is a mean, so these are 10 / 20 and
1 / 400. ``tiny`` has two layers of 256 cells projected to 64, rows of 32 tokens, and the text and the vocabulary of
``quickstart``.

Row b of a batch goes on where row b of the batch before ended, and so does the state of the forward direction. The
backward direction begins anew at the end of each row, which here are in the order of the text: there both directions
carry their state over sentences in random order. Rows of whole sentences, without a state, are
``--config.objective.arrangement=sentences --config.model.memory_length=0``.

Three other things differ. Here tokens are the 50,265 pieces of a byte-level BPE; there they are words, made of their
characters. Here the softmax is over all pieces; there over 8,192 samples of 793,471 words. Here embeddings and softmax
are drawn from a normal distribution cut at two standard deviations.

The features go into a tagger, with weights of the layers that are learned (section 3.2):

    bert-jax finetune --config=conll2003:weighted_sum_with_embeddings --workdir=runs/tagger \\
        --init=runs/elmo --data=CONLL
"""

from ml_collections import ConfigDict

from bert_jax.errors import UserError
from bert_jax.recipes import recipes

SIZES = ("base", "medium", "small", "tiny")


def get_config(size: str = "base") -> ConfigDict:
    if size not in SIZES:
        raise UserError(f"no size {size!r}; there are {', '.join(SIZES)}")
    tiny = size == "tiny"
    config = recipes.derive("quickstart" if tiny else "roberta")
    config.objective = ConfigDict({"name": "bilm", "arrangement": "streams"})
    config.model = ConfigDict({"encoder": "bilm", "size": size, "memory_length": 1})
    config.examples = ()
    config.export = False
    if tiny:
        config.model.dropout_rate = 0.0
        config.phases = ConfigDict({"pretraining": {"num_steps": 2_000, "batch_size": 64, "max_length": 32}})
        config.schedule = ConfigDict({"name": "linear", "peak_learning_rate": 6e-3, "warmup_steps": 100})
        return config
    config.phases = ConfigDict({"pretraining": {"num_epochs": 10.0, "batch_size": 384, "max_length": 20}})
    config.optimizer = ConfigDict({"name": "adagrad", "initial_accumulator": 1 / 400, "clip_norm": 0.5})
    config.schedule = ConfigDict({"name": "warmup_stable_decay", "peak_learning_rate": 0.2, "warmup_steps": 0})
    return config
