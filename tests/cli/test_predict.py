"""What ``predict`` asks for before a model is read."""

import pytest

from bert_jax.cli.main import run


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "give texts, or --input=FILE"),
        (["a text", "--input=x.tsv"], "give texts, or --input=FILE"),
        (["--input=x.tsv", "--submission=sst2"], "--output=DIR"),
        (["a text"], "no finished checkpoint"),
    ],
)
def test_slips(tmp_path, capsys, flags, said):
    assert run(["predict", f"--workdir={tmp_path}", *flags]) == 2
    assert said in capsys.readouterr().err
