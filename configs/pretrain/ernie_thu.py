"""ERNIE with entities (Zhang et al. 2019, arXiv 1905.07129): a BERT learns to read vectors of a knowledge graph.

    bert-jax pretrain --config=ernie_thu --init=BERT --workdir=runs/ernie_thu \\
        --config.corpus.options.paths="('wiki/*.txt',)" --config.corpus.columns.entity_ids.path=entities.tsv \\
        --config.objective.entities=entities.npy

BERT is the Hugging Face directory of BERT-base, uncased, or the workdir of a run; its sizes and its vocabulary are
taken, and the parameters of entities are fresh. Each line of ``entities.tsv`` is a phrase, a tab and the id of its
entity: the row of its vector in ``entities.npy``, float32 or float16 [N, 100], whose row 0 is zeros.

The values are from thunlp/ERNIE, README.md and code/run_pretrain.py: 8 batches of 32 rows of 256, one epoch, a peak
learning rate of 5e-5 after 10 % of the steps, BERT's optimizer; 5 layers of tokens alone, 7 with entities, and vectors
of 100 numbers, of TransE on 5.04 million entities of Wikidata. The text is Wikipedia; there its links are the mentions,
here a lexicon finds them. Two things differ: here the candidates are the entities of all 256 rows, there of 32 rows,
and there rows with fewer than 5 entities are left out.
"""

from ml_collections import ConfigDict

from bert_jax.recipes import recipes


def get_config(size: str = "base") -> ConfigDict:
    config = recipes.derive(f"bert_base:{size}")
    config.corpus.columns = ConfigDict({"entity_ids": {"annotator": "entities", "path": ""}})
    config.objective = ConfigDict({"name": "entity_alignment", "entities": ""})
    config.model = ConfigDict({"encoder": "ernie_thu", "size": size, "dtype": "bfloat16"})
    config.phases = ConfigDict({"pretraining": {"num_epochs": 1.0, "batch_size": 256, "max_length": 256}})
    config.schedule = ConfigDict({"name": "linear_from_zero", "peak_learning_rate": 5e-5, "warmup_fraction": 0.1})
    config.training.eval_phase = "pretraining"
    return config
