"""BERT-large as in the paper (Devlin et al. 2019, section A.2), both phases in one run under one schedule.

    bert-jax pretrain --config=bert_large --workdir=gs://bucket/bert_large \\
        --config.corpus.path=gs://bucket/corpus --config.vocab.path=gs://bucket/vocab.txt

The run takes 1,000,000 steps of 256 rows: 900,000 steps at length 128, then 100,000 at length 512. That is 8.2e19
FLOPs. With Wikipedia and BooksCorpus the paper's model reached an NSP accuracy of 97-98 %, and GLUE 81.9 after
fine-tuning.
"""

from ml_collections import ConfigDict

from bert_jax.recipes import recipes


def get_config() -> ConfigDict:
    return recipes.derive("bert_base:large")
