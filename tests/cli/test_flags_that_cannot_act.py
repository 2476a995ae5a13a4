"""A flag that a verb takes and that could not act, by the kind of input, is refused before anything is read."""

import pytest

from bert_jax.cli.main import run
from bert_jax.text.tokenizer import wordpiece

CASES = {
    "trim, lines": (
        ["trim", "--workdir=none", "--input=TXT", "--column=review", "--output=new"],
        "is read a text a line, and has no columns; leave out --column, or name its --format",
    ),
    "features, lines": (
        ["features", "--workdir=none", "--input=TXT", "--pair_column=b", "--id_column=id", "--output=x.parquet"],
        "has no columns; leave out --pair_column and --id_column",
    ),
    "features, options": (
        ["features", "--workdir=none", "--input=TXT", '--options={"header": false}', "--output=x.parquet"],
        "has no columns; leave out --options",
    ),
    "predict, typed texts": (
        ["predict", "--workdir=none", "--format=conll", "a text"],
        "--format=conll says how --input is written; leave it out with typed texts",
    ),
    "corpus, verify": (["corpus", "--verify=none", "--private"], "--verify=DIR builds nothing; leave out"),
    "corpus, fine-tuning": (
        ["corpus", "--config=classification", "--config.vocab.path=JSON", "--output=new"],
        "this recipe is one for fine-tuning and names no corpus; choose one of configs/pretrain",
    ),
    "pretrain, two vocabularies": (
        ["pretrain", "--config=quickstart", "--workdir=x", "--vocab=JSON", "--config.vocab.path=v.txt"],
        "--vocab takes the place of --config.vocab.path; leave one of them out",
    ),
    "retrieve, no scores": (
        ["retrieve", "--workdir=none", "--corpus=TXT", "--query=a", "--baseline=none"],
        "--baseline is scored beside the model, which needs --qrels or --squad; leave it out",
    ),
    "retrieve, twice": (
        ["retrieve", "--workdir=none", "--corpus=TXT", "--query=a", "--json", "--output=x.jsonl"],
        "--output writes what is found, in JSON; --json prints scores, or the same: leave one out",
    ),
    "ablate, no fine-tuning": (
        ["ablate", "--config=ablation", "--workdir=x", "--data=d"],
        "--data=d is read by fine-tuning; give --finetune=RECIPE, or leave it out",
    ),
    "sweep, seed": (
        ["sweep", "--config=classification", "--workdir=x", "--config.seed=5"],
        "--config.seed: a grid has the seeds of --seeds=0,1,2; leave it out",
    ),
    "sweep, init": (
        ["sweep", "--config=classification", "--workdir=x", "--vary=init=a,b", "--init=c"],
        "--init=c does not count beside --vary=init; name that model there too",
    ),
    "one process": (
        ["pretrain", "--config=quickstart", "--workdir=x", "--heartbeat_seconds=5", "--arrival_seconds=9"],
        "--heartbeat_seconds and --arrival_seconds: there is one process, which waits for no other; leave it out",
    ),
    "a cluster that is asked": (
        ["pretrain", "--config=quickstart", "--workdir=x", "--distributed=auto", "--process_id=0"],
        "--distributed=auto asks the cluster for what --process_id says; leave one out",
    ),
    "tokenize, a rule of its own": (
        ["tokenize", "--vocab=JSON", "--cased", "A text"],
        "says itself that text is converted to lower case; leave it out",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_act_is_refused(case, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("a text\n")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "text"]
    wordpiece(pieces, True).with_added([{"content": "<e1>"}]).save(tmp_path / "tokenizer.json")
    before = sorted(tmp_path.iterdir())
    words, said = CASES[case]
    places = {"TXT": str(tmp_path / "texts.txt"), "JSON": str(tmp_path / "tokenizer.json")}
    for name, place in places.items():
        words = [word.replace(name, place) for word in words]
    assert run(words) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_a_table_among_lines_has_columns(tmp_path):
    """With several files, a column counts for the files that have columns."""
    from bert_jax.features.inputs import Input, check_columns, read_texts

    (tmp_path / "a.txt").write_text("one\n")
    (tmp_path / "b.csv").write_text("text,review\nx,two\n")
    sources = [Input(str(tmp_path / name), column="review") for name in ("a.txt", "b.csv")]
    check_columns(sources)
    assert [item.text for one in sources for item in read_texts(one)] == ["one", "two"]
    assert [item.text for item in read_texts(Input(str(tmp_path / "b.csv")))] == ["x"]
