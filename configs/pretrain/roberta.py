"""RoBERTa-base (Liu et al. 2019): only masked language modelling, on full sentences, with new masks in every epoch.

    bert-jax pretrain --config=roberta --workdir=runs/roberta \\
        --config.corpus.source=text_files --config.corpus.options.paths="('text/*.txt.gz',)"

The values are from fairseq's config/pretraining/base.yaml: 125,000 steps of 2,048 rows of 512 positions; a learning
rate with a peak of 5e-4 after 10,000 steps, then linear to 0; Adam with b2 0.98 and eps 1e-6, weight decay 0.01, no
clipping. The paper's own run took 500,000 steps of 8,192 rows. The tokenizer is a byte-level BPE of 50,265 pieces,
which keeps capitals. The paper's base model reached 87.6 on MNLI and 92.8 on QNLI (development sets).

Four things differ from fairseq. Here biases and layer norms are not decayed; there all parameters are. Here ``<s>``
and ``</s>`` are never masked; there they may be, as other tokens. Here initial weights are drawn from a normal
distribution cut at two standard deviations; there it is not cut. In fine-tuning, its head for whole texts drops out
twice, before and after its dense layer; here once, after it.

``--config=roberta:large`` has the large encoder, with the paper's peak of 4e-4 after 30,000 steps.
"""

from ml_collections import ConfigDict


def get_config(size: str = "base") -> ConfigDict:
    config = ConfigDict()

    # Text
    config.vocab = ConfigDict({"path": "", "kind": "byte_bpe", "size": 50_265, "lowercase": False})
    config.corpus = ConfigDict(
        {"path": "", "source": "text_files", "options": {"paths": ()}, "heldout_fraction": 0.005}
    )

    # Objective and model
    masking = {"count": "stochastic", "random_pieces": "not_special"}  # int(0.15 n + u) tokens, as fairseq draws them
    config.objective = ConfigDict({"name": "mlm", "arrangement": "sentences", "masking": masking})
    config.model = ConfigDict({"encoder": "roberta", "size": size, "dtype": "bfloat16"})

    # Optimization
    config.phases = ConfigDict({"pretraining": {"num_steps": 125_000, "batch_size": 2_048, "max_length": 512}})
    config.optimizer = ConfigDict(
        {"name": "adamw", "b2": 0.98, "eps": 1e-6, "clip_norm": None, "bias_correction": "standard"}
    )
    large = size == "large"
    config.schedule = ConfigDict(
        {
            "name": "linear",
            "peak_learning_rate": 4e-4 if large else 5e-4,
            "warmup_steps": 30_000 if large else 10_000,
        }
    )
    config.selection = ConfigDict({"metric": ""})  # "": the last step is the result, not the best evaluation's

    # Logs, evaluations and saves: free to change on a restart
    config.loader = ConfigDict({"num_workers": 4})
    config.training = ConfigDict({"log_every_steps": 100, "eval_every_steps": 5_000, "eval_rows": 4_096})
    config.checkpoints = ConfigDict({"every_steps": 2_500, "keep": 3, "keep_every_steps": 25_000})
    config.examples = ("The capital of France is [MASK].", "He opened the [MASK] and went in.")
    return config
