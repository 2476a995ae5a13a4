"""Secrets and folders are taken out of what a card shows of a run; all else stays."""

import pytest

from bert_jax.interchange.published import published, published_command

TOKEN = "hf_" + "t" * 34


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (
            "bert-jax pretrain --config=/a/b.json:small --workdir=~/r",
            "bert-jax pretrain --config=b.json:small --workdir=r",
        ),
        (f"bert-jax x --hub_token {TOKEN} --config.a.secret=b", "bert-jax x --hub_token '***' '--config.a.secret=***'"),
        (f"bert-jax x '--config.a=[1, \"{TOKEN}\"]'", "bert-jax x '--config.a=[1, \"***\"]'"),
        ("bert-jax x '--config.a=[\"/x y/z.txt\",/p/q]'", "bert-jax x '--config.a=[\"z.txt\",q]'"),
        ("bert-jax x --a=s3://me:pw@host/b?X-Amz-Signature=1f", "bert-jax x '--a=s3://***@host/b?***'"),
        ("bert-jax x --vol=host:/p/q --b=gs://bucket/q", "bert-jax x --vol=host:q --b=gs://bucket/q"),
        (
            "bert-jax x --max_new_tokens=5 --c=a/b --d=1/2 ../e/f",
            "bert-jax x --max_new_tokens=5 --c=a/b --d=1/2 ../e/f",
        ),
        (
            f"bert_jax.pretrain('mini', '/x y/run', overrides={{'a.api_key': 'k', 'b': '{TOKEN}'}})",
            "bert_jax.pretrain('mini', 'run', overrides={'a.api_key': '***', 'b': '***'})",
        ),
        ("bert-jax x --a='/p/q", "bert-jax x --a='q"),
    ],
)
def test_commands(command: str, shown: str) -> None:
    assert published_command(command) == shown


def test_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    monkeypatch.setenv("EDITOR", "a harmless value")
    tree = {
        "paths": ["/data/x/*.txt", "rel/y", "hf://me/model@main"],
        "options": {"password": "p", "mask_token": "[MASK]", "num_tokens": 7, "token": "t", "note": "a harmless value"},
        "wandb": "key 0123456789abcdef",
        "text": "either/or, and 1/2",
    }
    assert published(tree) == {
        "paths": ["*.txt", "rel/y", "hf://me/model@main"],
        "options": {
            "password": "***",
            "mask_token": "[MASK]",
            "num_tokens": 7,
            "token": "***",
            "note": "a harmless value",
        },
        "wandb": "key ***",
        "text": "either/or, and 1/2",
    }
