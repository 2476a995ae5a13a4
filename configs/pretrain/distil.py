"""DistilBERT (Sanh et al. 2019, arXiv 1910.01108): half of BERT's layers, which learn from a trained BERT.

    bert-jax pretrain --config=distil --config.teacher.init=BERT --config.vocab.path=BERT/vocab.txt \\
        --workdir=runs/distil --config.corpus.source=text_files --config.corpus.options.paths="('text/*.txt.gz',)"

BERT is a Hugging Face directory or the workdir of a run, with 12 layers of 768; its vocabulary is the student's
(``--config.vocab.lowercase=False`` for a cased one). The student begins with its embeddings, its layers 1, 3, 5, 8, 10
and 12, and its masked-LM head. The loss is 5 times the loss of soft targets at temperature 2, 2 times the loss of
masked tokens, and 1 - the cosine of the last hidden states; there is no next-sentence prediction, and masks are drawn
anew in every epoch. Source of all values: huggingface/transformers, examples/research_projects/distillation, the
command in README.md with the defaults of train.py, and the layers of scripts/extract_distilbert.py. Batches there have
5 rows a GPU with 50 steps of accumulation; the paper speaks of up to 4,000 rows, as on 16 GPUs, which are taken here.

Two things differ. Soft targets here are for masked tokens (``--restrict_ce_to_mask`` there); there, for all tokens.
Masks here fall on all tokens alike; there, more often on rare ones (``--mlm_smoothing``).

The same page gives development scores of GLUE: 77.0 on average, and 79.5 for the teacher (MNLI 82.1 and 84.7, SST-2
91.3 and 92.7, STS-B 86.9 and 89.0). Fine-tuning from a teacher of the same task is ``finetune/distil``.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()

    # Text. The vocabulary is the teacher's.
    config.vocab = ConfigDict({"path": "", "size": 30_522, "lowercase": True})
    config.corpus = ConfigDict(
        {"path": "", "source": "text_files", "options": {"paths": ()}, "heldout_fraction": 0.005}
    )

    # Objective, model and teacher
    config.objective = ConfigDict({"name": "mlm", "arrangement": "sentences"})
    config.model = ConfigDict({"encoder": "distilbert", "size": "base", "dtype": "bfloat16"})
    config.teacher = ConfigDict(
        {
            "init": "",
            "labels": 2.0,
            "soft": {"weight": 5.0, "temperature": 2.0},
            "hidden": {"weight": 1.0, "loss": "cosine"},
            "layers": "last",
            "start": (1, 3, 5, 8, 10, 12),
        }
    )

    # Optimization
    config.phases = ConfigDict({"pretraining": {"num_epochs": 3.0, "batch_size": 4_000, "max_length": 512}})
    config.optimizer = ConfigDict(
        {
            "name": "adamw",
            "b2": 0.98,
            "eps": 1e-6,
            "weight_decay": 0.0,
            "clip_norm": 5.0,
            "bias_correction": "standard",
        }
    )
    config.schedule = ConfigDict({"name": "linear", "peak_learning_rate": 5e-4, "warmup_fraction": 0.05})
    config.selection = ConfigDict({"metric": ""})  # "": the last step is the result, not the best evaluation's

    # Logs, evaluations and saves: free to change on a restart
    config.loader = ConfigDict({"num_workers": 4})
    config.training = ConfigDict({"log_every_steps": 100, "eval_every_steps": 2_000, "eval_rows": 4_096})
    config.checkpoints = ConfigDict({"every_steps": 1_000, "keep": 3})
    config.examples = ("The capital of France is [MASK].", "He opened the [MASK] and went in.")
    return config
