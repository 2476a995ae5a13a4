"""Damaged files of every format: read as far as they can be, or one line of error, and never anything else."""

import json
import random
import zlib

import pytest

from bert_jax.errors import UserError
from tests.examples.loading import CLASSIFICATION, MULTIPLE_CHOICE, SPAN_QA, TAGGING, noted

QUESTION = {"id": "1", "question": "why?", "answers": [{"text": "b c", "answer_start": 2}], "is_impossible": False}
SQUAD = {"data": [{"title": "t", "paragraphs": [{"context": "a b c", "qas": [QUESTION, QUESTION | {"id": "2"}]}]}]}
DREAM = [[["A: 1", "B: 2"], [{"question": "q", "choice": ["x", "y"], "answer": "y"}], "7"]] * 3
SPANS = {"text": "在北京的人", "label": {"place": {"北京": [[1, 2]]}, "who": {"人": [[4, 4]]}}}
SAMPLES = [
    ("delimited", CLASSIFICATION, "text\tpair\tlabel\nä b\tc\t1\nd\te f\t0\n", {}),
    ("delimited", CLASSIFICATION, 'text,label\n"a, ""b""\nc",1\nd,0\n', {"delimiter": ","}),
    ("jsonl", CLASSIFICATION, '{"text": "ä", "label": 1}\n{"text": "b", "label": 0, "pair": null}\n', {}),
    ("jsonl", SPAN_QA, json.dumps(QUESTION | {"context": "a b c"}) * 3, {}),
    ("conll", TAGGING, "-DOCSTART- -X- O\n\nEU NNP I-ORG\nrejects VBZ O\n\nPeter X B-PER\n", {}),
    ("character_spans", TAGGING, json.dumps(SPANS, ensure_ascii=False, indent=1) * 3, {}),
    ("squad_json", SPAN_QA, json.dumps(SQUAD), {}),
    ("jsonl", MULTIPLE_CHOICE, json.dumps(DREAM), {"field": "1"}),
    ("line_columns", MULTIPLE_CHOICE, "Sport: He runs\n1\na\nb\nc\nd\n" * 3, {"num_lines": 6}),
]
COLUMNS = {  # options -> columns
    '{"field": "1"}': {"context": "0", "choices": "choice", "label": "answer"},
    '{"num_lines": 6}': {"context": "0", "label": "1", "choices": ("2", "3", "4", "5")},
}


def damaged(raw: bytes, chance: random.Random) -> bytes:
    for _ in range(chance.randint(1, 4)):
        a, b = sorted(chance.randrange(len(raw) + 1) for _ in range(2))
        odd = chance.choice([b'"', b"[", b"{", b"null", b"-1", b"\t", b"\n", b"\\ud800", b"1e999"])
        raw = chance.choice(
            [
                raw[:a] + raw[b:],
                raw[:a] + raw[a:b] * 2 + raw[b:],
                raw[:a] + bytes([chance.randrange(256)]) + raw[a + 1 :],
                raw[:a] + odd + raw[a:],
            ]
        )
    return raw


@pytest.mark.parametrize(("form", "roles", "text", "options"), SAMPLES)
def test_damage_is_an_error_of_one_line(tmp_path, form, roles, text, options):
    path = tmp_path / "file"
    outcomes = set()
    for trial in range(30):
        path.write_bytes(damaged(text.encode(), random.Random(zlib.crc32(f"{form} {trial}".encode()))))
        config = {"format": form, "options": options, "splits": {"dev": "file"}, "bad_examples": "skip"}
        config["columns"] = COLUMNS.get(json.dumps(options), {})
        try:
            found, notes = noted(tmp_path, roles, **config)
        except UserError as error:
            notes, found = [str(error)], {"dev": ()}
        outcomes.add(bool(found["dev"]))
        for line in notes:
            assert "\n" not in line
            line.encode()
        for example in found["dev"]:
            assert set(roles.required) <= set(example)
            json.dumps(example, ensure_ascii=False).encode()
    assert True in outcomes
