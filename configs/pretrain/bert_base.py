"""BERT-base as in the paper (Devlin et al. 2019, section A.2), both phases in one run under one schedule.

    bert-jax pretrain --config=bert_base --workdir=runs/bert_base \\
        --config.corpus.source=text_files --config.corpus.options.paths="('text/*.txt.gz',)"

The run takes 1,000,000 steps of 256 rows: 900,000 steps at length 128, then 100,000 at length 512. That is 2.4e19
FLOPs, as ``bert_jax/models/config.py`` counts them. With Wikipedia and BooksCorpus the paper's model reached an NSP
accuracy of 97-98 %, and GLUE 79.6 after fine-tuning.
"""

from ml_collections import ConfigDict


def get_config(size: str = "base") -> ConfigDict:
    config = ConfigDict()

    # Text
    config.vocab = ConfigDict({"path": "", "size": 30_522, "lowercase": True})
    config.corpus = ConfigDict(
        {"path": "", "source": "text_files", "options": {"paths": ()}, "heldout_fraction": 0.005}
    )

    # Objective and model
    config.objective = ConfigDict({"name": "mlm_nsp", "packing": "packed"})
    config.model = ConfigDict({"size": size, "dtype": "bfloat16"})

    # Optimization: the published optimizer, with a peak learning rate of 1e-4 after 10,000 steps
    config.phases = ConfigDict(
        {
            "phase1": {"num_steps": 900_000, "batch_size": 256, "max_length": 128},
            "phase2": {"num_steps": 100_000, "batch_size": 256, "max_length": 512},
        }
    )
    config.optimizer = ConfigDict({"name": "adamw", "bias_correction": "none"})
    config.schedule = ConfigDict({"name": "linear_from_zero", "peak_learning_rate": 1e-4, "warmup_steps": 10_000})
    config.selection = ConfigDict({"metric": ""})  # "": the last step is the result, not the best evaluation's

    # Logs, evaluations and saves: free to change on a restart
    config.loader = ConfigDict({"num_workers": 4})
    config.training = ConfigDict(
        {
            "log_every_steps": 100,
            "eval_every_steps": 10_000,
            "eval_rows": 10_240,
            "eval_phase": "phase1",  # rows of length 128 in all phases, so that evaluations can be compared
        }
    )
    config.checkpoints = ConfigDict({"every_steps": 5_000, "keep": 3, "keep_every_steps": 100_000})
    config.examples = ("The capital of France is [MASK].", "He opened the [MASK] and went in.")
    return config
