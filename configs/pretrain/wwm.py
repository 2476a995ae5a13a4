"""BERT with whole-word masking: the pieces of a word are masked together, each is predicted by itself.

    bert-jax pretrain --config=wwm --workdir=runs/wwm \\
        --config.corpus.source=text_files --config.corpus.options.paths="('text/*.txt.gz',)"

google-research/bert, README.md of 2019-05-31: text, model and training are BERT's, so all but the masking is
``bert_base.py``. The published models are large (``wwm`` here; ``wwm:base``): on SQuAD 1.1 the uncased one reached
F1 92.8, where BERT-large has 91.0, and on MultiNLI 87.07, where it has 86.05.
"""

import os
import runpy

from ml_collections import ConfigDict


def get_config(size: str = "large") -> ConfigDict:
    base = runpy.run_path(os.path.join(os.path.dirname(__file__), "bert_base.py"))
    config = base["get_config"](size)
    config.objective.masking = ConfigDict({"strategy": "whole_unit", "unit": "word"})
    return config
