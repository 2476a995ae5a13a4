"""BERT with whole-word masking: the pieces of a word are masked together, and each piece is predicted by itself.

    bert-jax pretrain --config=wwm --workdir=runs/wwm \\
        --config.corpus.source=text_files --config.corpus.options.paths="('text/*.txt.gz',)"

According to google-research/bert, README.md of 2019-05-31, text, model and training are BERT's. So everything
except the masking is taken from ``bert_base.py``. Like the published models, ``wwm`` has the size of BERT-large;
``wwm:base`` has the size of BERT-base. On SQuAD 1.1 the published uncased model reached F1 92.8, and BERT-large 91.0;
on MultiNLI they reached 87.07 and 86.05.

One thing differs: here a row holds as many pairs as fit (``packing``), which do not attend to each other; there each
row holds one pair and padding.
"""

from ml_collections import ConfigDict

from bert_jax.recipes import recipes


def get_config(size: str = "large") -> ConfigDict:
    config = recipes.derive(f"bert_base:{size}")
    config.objective.masking = ConfigDict({"strategy": "whole_unit", "unit": "word"})
    return config
