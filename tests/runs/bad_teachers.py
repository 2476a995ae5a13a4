"""Flags of a teacher that does not fit, and what the error says."""

ANOTHER = "has another vocabulary of its own, and reads no other; add --config.vocab.path="
BAD = {
    "no key": (["--config.teacher.init="], "config.teacher.init is needed, the model to learn from: a Hugging Face"),
    "no group": (
        ["--config.teacher=None", "--config.teacher={place}/teacher"],
        "teacher', and has keys of its own; give one of them, --config.teacher.init=",
    ),
    "nothing": (["--config.teacher.soft.weight=0"], "teaches nothing: the weights of soft, hidden and attention are 0"),
    "cold": (["--config.teacher.soft.temperature=0"], "soft.temperature is 0.0; 0.001 to 1,000 is allowed"),
    "unread": (
        ["--config.teacher.layers=last", "--config.teacher.hidden.loss=cosine"],
        "config.teacher.layers is 'last', which nothing reads; set hidden.weight or attention.weight above 0, or layers"
        " to 'uniform'; config.teacher.hidden.loss is 'cosine', which nothing reads; set hidden.weight above 0, or "
        "hidden.loss to 'mse'",
    ),
    "unread temperature": (
        [*(f"--config.teacher.{key}" for key in ("soft.weight=0", "soft.temperature=2", "attention.weight=1"))],
        "config.teacher.soft.temperature is 2.0, which nothing reads; set soft.weight above 0, or soft.temperature to",
    ),
    "layers": (
        ["--config.teacher.hidden.weight=1", "--config.teacher.layers=(2, 5)"],
        "config.teacher.layers is (2, 5), and the teacher has 4 layers, the student 2; 'uniform', 'every_second', "
        "'last' or a tuple of 2 numbers from 1 to 4",
    ),
    "odd": (
        ["--config.teacher.hidden.weight=1", "--config.model.num_layers=3"],
        "'uniform', and the teacher has 4 layers, the student 3, which do not divide; give a tuple of 3 layers",
    ),
    "half": (
        ["--config.teacher.hidden.weight=1", "--config.teacher.layers=every_second", "--config.model.num_layers=1"],
        "'every_second', and the teacher has 4 layers, the student 1; the student needs 2",
    ),
    "head": (
        ["--config.objective.name=mlm_nsp"],
        "has no pooler, nsp_head, and soft targets of the term 'nsp' read its nsp_logits; take a teacher that has it, "
        "name other terms in config.teacher.soft.terms, or set config.teacher.soft.weight to 0 and "
        "config.teacher.hidden.weight above 0",
    ),
    "term": (["--config.teacher.soft.terms=('nsp',)"], "config.teacher.soft.terms has 'nsp'; valid: mlm"),
    "heads": (
        ["--config.teacher.attention.weight=1", "--config.model.num_heads=4"],
        "config.teacher.attention compares heads one by one, and the student has 4, config.teacher.init=",
    ),
    "relative": (
        ["--config.teacher.attention.weight=1", "--config.model.encoder=xlnet"],
        "compares products of queries and keys, and the scores of relative attention have other terms too; set weight",
    ),
    "narrow": (
        ["--config.teacher.start=uniform"],
        "start is 'uniform', and the student has hidden_size 32, the teacher hidden_size 64; leave config.teacher.start"
        " out, or give the student the sizes of the teacher: --config.model.hidden_size=64",
    ),
    "another encoder": (
        ["--config.teacher.start=(1, 4)", "--config.model.encoder=albert"]
        + ["--config.model.hidden_size=64", "--config.model.embedding_size=64"],
        "the teacher's not there; leave config.teacher.start out, or take a teacher of the same encoder",
    ),
    "one layer": (["--config.teacher.start=last"], "start is 'last', and each layer of the student needs one"),
    "order": (
        ["--config.objective.name=ltr"],
        "reads both sides, and the student what came before in phase1; take a teacher that reads the same, or objec",
    ),
    "length": (
        ["--config.model.max_length=64", "--config.max_length=64"],
        "reads at most 32 positions, and the rows of phase1 have 64; lower config.phases.phase1.max_length",
    ),
    "no task": (["--config.teacher.task=reviews"], "not trained on several tasks; leave the config.teacher.task 'rev"),
}
OF_A_RUN = {  # what a command alone can refuse, and a first case of each kind
    "gone": (["--config.teacher.init=gone"], "config.teacher.init=gone is neither a Hugging Face directory"),
    "two starts": (
        ["--config.teacher.start=uniform", "--init={place}/teacher"],
        "config.teacher.start takes the first parameters from the teacher, and --init=",
    ),
    "vocabulary": (["--config.vocab.path={place}/other.txt"], ANOTHER),
    "added": (
        ["--config.vocab.added=('<e1>',)"],
        "has a vocabulary of its own, and config.vocab.added adds <e1> to that of the run; leave config.vocab.added",
    ),
}
