"""Goes on from a model on your own text, to adapt it to a domain (Gururangan et al. 2020, arXiv 2004.10964).

    bert-jax pretrain --config=continue --init=MODEL --workdir=runs/mine --config.corpus.options.paths='mine/*.txt'

MODEL is a Hugging Face directory or the workdir of a run; its architecture and its vocabulary are taken. The source is
``text_files``; configs/README.md lists the other sources (``--config.corpus.source=jsonl``) and their options.
Each file is a document; ``--config.corpus.options.document_boundary=blank_line`` says that blank lines end documents.

There is one phase of masked language modelling on full sentences, three times through the text. Its length is
``--config.phases.phase1.num_epochs``, or instead ``num_tokens`` or ``num_steps``. A model of BERT-base's size keeps the
rate of 5e-5; small ones learn more with 5e-4 (``--config.schedule.peak_learning_rate``).

    bert-jax pretrain --config=continue:replay --init=MODEL --workdir=runs/mine \\
        --config.corpus.parts.own.options.paths='mine/*.txt' --config.corpus.parts.general.options.paths='general/*.txt'

``replay`` mixes one row of general text with every four of your own, so that the model forgets less; each part has
separate held-out figures (``mlm_loss/general``). Its length is counted in tokens of both.
"""

from typing import Any

from ml_collections import ConfigDict


def files() -> dict[str, Any]:
    return {"source": "text_files", "options": {"paths": ()}}


def get_config(text: str = "own") -> ConfigDict:
    if text not in ("own", "replay"):
        raise ValueError(f"no text {text!r}; there are own and replay")
    config = ConfigDict()

    # Text. The vocabulary comes from --init.
    config.vocab = ConfigDict({"path": ""})
    config.corpus = ConfigDict({"path": "", "heldout_fraction": 0.05})
    if text == "own":
        config.corpus.update(files())
        length = {"num_epochs": 3.0}
    else:
        config.corpus.parts = ConfigDict({"own": {**files(), "weight": 4.0}, "general": {**files(), "weight": 1.0}})
        length = {"num_tokens": 10_000_000}

    # Objective and model: the architecture comes from --init, of whatever kind
    config.objective = ConfigDict({"name": "mlm", "arrangement": "sentences", "packing": "packed"})
    config.model = ConfigDict()

    # Optimization
    config.phases = ConfigDict({"phase1": {**length, "batch_size": 32, "max_length": 128}})
    config.optimizer = ConfigDict({"name": "adamw", "bias_correction": "standard"})
    config.schedule = ConfigDict({"name": "linear", "peak_learning_rate": 5e-5, "warmup_fraction": 0.06})
    config.selection = ConfigDict({"metric": ""})  # "": the last step is the result, not the best evaluation's

    # Logs, evaluations and saves: free to change on a restart
    config.training = ConfigDict({"log_every_steps": 20, "eval_every_steps": 200, "eval_rows": 1024})
    config.checkpoints = ConfigDict({"every_steps": 200})
    return config
