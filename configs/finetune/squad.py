"""Finds the answer to a question as a span of a text (Devlin et al. 2019, sections 4.2 and 4.3).

    bert-jax finetune --config=squad:v1 --init=DIR --data=FOLDER --workdir=runs/squad

The argument selects the files in FOLDER, which may be compressed (.xz, .gz, ...):

    own                 a file of yours, --config.data.splits.train=questions.json; a tenth of it is to evaluate on,
                        unless --config.data.splits.dev=FILE names another
    v1                  train-v1.1.json, dev-v1.1.json: SQuAD v1.1
    v2                  train-v2.0.json, dev-v2.0.json: SQuAD v2.0, where questions may have no answer
    squad_v1_tokenized  squad_v1_tokenized/val.*: 4,285 questions of SQuAD v1.1, a tenth of them to evaluate on
    xquad_en            xquad.en.json, a fifth of its questions to evaluate on
    policyqa            policyqa_dev.json to train on, policyqa_test.json to evaluate on
    covidqa             covidqa_200423.json, a fifth to evaluate on: texts up to 15,000 tokens, 50 rows per question
    cmrc2018            cmrc2018_dev.json to train on, cmrc2018_trial.json to evaluate on; needs the extra cmrc
    drcd                DRCD_dev.json to train on, DRCD_test.json to evaluate on; needs the extra cmrc

Where a share of the questions is held out for evaluation, other questions on the same texts are in training. Answers
that are not at their answer_start are counted, reported and searched in the context (config.task.bad_answers). For
SQuAD v2.0, the metric ``best_f1_thresh`` is the threshold to use in predictions:
--config.task.null_score_diff_threshold=...

tests/benchmarks/README.md has the scores that small models reached. The paper trains 3 epochs with batches of 32 on
v1.1, and 2 epochs with batches of 48 on v2.0, at a learning rate of 5e-5.
"""

from ml_collections import ConfigDict

CHINESE = {"language": "zh"}
TASKS = {  # name -> (splits, share of train to evaluate on, options of the task)
    "own": ({"train": "train.json"}, 0.1, {}),
    "v1": ({"train": "train-v1.1.json", "dev": "dev-v1.1.json"}, 0.0, {}),
    "v2": ({"train": "train-v2.0.json", "dev": "dev-v2.0.json"}, 0.0, {"version_2": True}),
    "squad_v1_tokenized": ({"train": "squad_v1_tokenized/val.*"}, 0.1, {}),
    "xquad_en": ({"train": "xquad.en.json"}, 0.2, {}),
    # In some files many answers are longer than the default limit of 30 tokens, so their limit is higher.
    "policyqa": ({"train": "policyqa_dev.json", "dev": "policyqa_test.json"}, 0.0, {"max_answer_length": 60}),
    "covidqa": ({"train": "covidqa_200423.json"}, 0.2, {"max_answer_length": 90}),
    "cmrc2018": (
        {"train": "cmrc2018_dev.json", "dev": "cmrc2018_trial.json"},
        0.0,
        {**CHINESE, "max_answer_length": 90},
    ),
    "drcd": ({"train": "DRCD_dev.json", "dev": "DRCD_test.json"}, 0.0, CHINESE),
}


def get_config(name: str = "v1") -> ConfigDict:
    if name not in TASKS:
        raise ValueError(f"no data {name!r}; there are {', '.join(TASKS)}")
    splits, dev_fraction, task = TASKS[name]
    config = ConfigDict()

    # Task and data
    config.task = ConfigDict({"name": "span_qa", "max_query_length": 64, "doc_stride": 128, **task})
    config.data = ConfigDict(
        {
            "format": "line_columns" if name == "squad_v1_tokenized" else "squad_json",
            "options": {"files": ("context", "question", "span")} if name == "squad_v1_tokenized" else {},
            "splits": splits,
            "columns": {"answers": "span"} if name == "squad_v1_tokenized" else {},
            "dev_fraction": dev_fraction,
            # Two questions of CMRC's trial file are empty; one span of the tokenized file ends before it begins.
            "bad_examples": "skip" if name in ("cmrc2018", "squad_v1_tokenized") else "error",
        }
    )

    # Model: used without --init, from random initialisation, with a vocabulary learned from the texts
    config.model = ConfigDict({"size": "mini"})
    config.vocab = ConfigDict({"path": "", "size": 8192, "lowercase": True})
    config.frozen = ()

    # Optimization
    epochs, batch_size = (2.0, 48) if name == "v2" else (3.0, 32)
    config.phases = ConfigDict({"train": {"num_epochs": epochs, "batch_size": batch_size, "max_length": 384}})
    config.schedule = ConfigDict({"peak_learning_rate": 5e-5, "warmup_fraction": 0.1})
    config.selection = ConfigDict({"metric": "f1"})

    # Evaluations and logs
    config.training = ConfigDict({"evaluations_per_epoch": 1, "loggers": ("tensorboard",)})
    return config
