"""Every check finds what was planted, and nothing in a clean corpus. Counts are compared with plain Python."""

import itertools
import json
import random
import shutil
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from bert_jax.cli import main
from bert_jax.corpora.manifest import seal
from bert_jax.inspection.fixes import Fixes
from bert_jax.inspection.inspect import Inspection, InspectionRequest, inspect
from tests.inspection.corpora import WORDS, build, repeats, sentence, stored, texts, write_vocab

LENGTHS = (32, 128)


@pytest.fixture(scope="module")
def vocab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vocab(tmp_path_factory.mktemp("vocab") / "vocab.txt")


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory, vocab: Path) -> Path:
    return build(tmp_path_factory.mktemp("clean"), texts(), vocab)


def judge(corpus: Path, vocab: Path | None = None, **more: object) -> Inspection:
    return inspect(InspectionRequest(str(corpus), str(vocab) if vocab else None, max_lengths=LENGTHS, **more))[""]


def statuses(found: Inspection) -> dict[str, str]:
    return {check.name: check.status for check in found.checks if check.status != "ok"}


def test_nothing_is_wrong_with_a_clean_corpus(clean: Path, vocab: Path) -> None:
    found = judge(clean, vocab)
    assert statuses(found) == {}
    assert found.verdict == "ok"
    assert found.check("duplicate_lines").facts["repeated_lines"] == 0
    assert found.check("tokens_a_word").facts["fertility"] == 1.0


def test_repeated_lines_and_documents_are_counted_exactly(tmp_path: Path, vocab: Path) -> None:
    rng = random.Random(1)
    documents = texts(100)
    notice, short = sentence(rng), "baba keke ."
    documents = [[notice, short, *lines] if i % 2 else lines for i, lines in enumerate(documents)]
    documents += documents[:30]
    corpus = build(tmp_path, documents, vocab)
    found = judge(corpus, vocab)
    train, held = stored(corpus, "train"), stored(corpus, "heldout")
    lines = [line for document in train for line in document]
    seen, seen_documents = set(lines), {tuple(d) for d in train}
    in_held = [line for document in held for line in document if line in seen and len(line) >= 10]

    facts = found.check("duplicate_lines").facts
    assert facts["repeated_lines"] == repeats(lines) > 0
    assert facts["long_repeated_lines"] == repeats(line for line in lines if len(line) >= 10)
    assert found.check("duplicate_documents").facts["repeated_documents"] == repeats(map(tuple, train)) > 0
    facts = found.check("heldout_overlap").facts
    assert facts["documents"] == sum(tuple(document) in seen_documents for document in held) > 0
    assert facts["lines"] == len(in_held) > 0
    assert facts["token_share"] == pytest.approx(sum(map(len, in_held)) / sum(len(x) for d in held for x in d))
    label, text = found.check("duplicate_lines").text[0]
    assert text.startswith(notice[:40])
    assert label == f"{Counter(line for line in lines if len(line) >= 10).most_common(1)[0][1]:,} times"
    assert set(statuses(found)) == {"duplicate_lines", "duplicate_documents", "heldout_overlap"}
    assert found.verdict == "bad"


def test_documents_of_one_sentence(tmp_path: Path, vocab: Path) -> None:
    rng = random.Random(3)
    documents = [*texts(40), *([sentence(rng)] for _ in range(300))]
    found = judge(build(tmp_path, documents, vocab), vocab)
    train = stored(tmp_path / "corpus", "train")
    assert found.check("documents").facts["one_sentence_documents"] == sum(len(d) == 1 for d in train)
    assert found.check("documents").status == "bad"


def test_lines_without_sentence_ends(tmp_path: Path, vocab: Path) -> None:
    rng = random.Random(4)
    documents = [[" ".join(rng.choices(WORDS, k=700)) for _ in range(3)] for _ in range(30)]
    found = judge(build(tmp_path, documents, vocab), vocab)
    assert statuses(found)["sentences"] == "bad"
    assert found.check("sentences").facts["long_token_share"] == 1.0
    assert statuses(found)["next_sentence_balance"] == "bad"  # chunks of one sentence
    assert found.check("next_sentence_balance").facts["32"]["one_sentence_chunks"] > 0.9  # a short chunk has two


def test_one_document_holds_most_of_the_text(tmp_path: Path, vocab: Path) -> None:
    rng = random.Random(5)
    documents = [*texts(20), *([sentence(rng) for _ in range(400)] for _ in range(2))]
    found = judge(build(tmp_path, documents, vocab), vocab)
    largest = max(sum(map(len, d)) for d in stored(tmp_path / "corpus", "train"))
    total = sum(sum(map(len, d)) for d in stored(tmp_path / "corpus", "train"))
    assert found.check("documents").facts["largest_share"] == pytest.approx(largest / total)
    assert statuses(found)["documents"] == "warn"


def test_unknown_words(tmp_path: Path, vocab: Path) -> None:
    documents = [["日本 語 の 文 .", *lines] if i % 4 == 0 else lines for i, lines in enumerate(texts())]
    found = judge(build(tmp_path, documents, vocab), vocab)
    train = [token for document in stored(tmp_path / "corpus", "train") for line in document for token in line]
    assert found.check("unknown_tokens").facts["share"] == pytest.approx(train.count(1) / len(train))
    assert train.count(1) > 0
    only = judge(build(tmp_path / "only", [["日本語の文です 。"] * 6 for _ in range(40)], vocab), vocab)
    assert statuses(only)["unknown_tokens"] == "bad"
    assert only.check("unknown_tokens").facts["documents_often"] == 1.0


def test_a_vocabulary_of_another_language(tmp_path: Path, vocab: Path) -> None:
    rng = random.Random(6)
    other = ["".join(rng.choices("aeioustrnlmd", k=7)) for _ in range(300)]
    found = judge(build(tmp_path, texts(words=other), vocab), vocab)
    assert statuses(found)["tokens_a_word"] == "bad"
    assert found.check("tokens_a_word").facts["fertility"] > 2.5
    assert found.check("tokens_a_word").facts["single_letter_share"] > 0.3


CAPITALS = [word.capitalize() for word in WORDS]


@pytest.mark.parametrize(
    ("pieces", "words", "lowercase", "status"),
    [
        ([*WORDS, *CAPITALS], [*WORDS, *CAPITALS], True, "bad"),
        (WORDS, [*WORDS, *CAPITALS], False, "bad"),
        ([*WORDS, *CAPITALS], WORDS, False, "warn"),
        ([*WORDS, *CAPITALS], [*WORDS, *CAPITALS], False, "ok"),
        (WORDS, [*WORDS, *CAPITALS], True, "ok"),
    ],
)
def test_letter_case(tmp_path: Path, pieces: list[str], words: list[str], lowercase: bool, status: str) -> None:
    vocab = write_vocab(tmp_path / "vocab.txt", pieces)
    corpus = build(tmp_path / "it", texts(40, words=words), vocab, f"--config.vocab.lowercase={lowercase}")
    assert judge(corpus, vocab).check("letter_case").status == status


SAMPLES = {
    "fr": "l'été dernier, la fenêtre du café était fermée et les élèves, déjà âgés, où qu'ils fussent, étaient gênés",
    "de": "die Mädchen können für die Straße größere Schlösser öffnen, während Fußgänger natürlich müde wären",
    "es": "la niña también pidió más café porque el avión llegó según él mañana por la noche en el jardín",
    "vi": "Hà Nội là thủ đô của nước Cộng hòa xã hội chủ nghĩa Việt Nam và cũng là kinh đô của các vương triều",
    "ru": "вчера вечером мы долго гуляли по старому городу и говорили о книгах, которые прочитали летом",
    "zh": "春天来了,河边的柳树长出了新的叶子,孩子们在院子里放风筝,老人坐在门前喝茶聊天看着他们笑",
    "en": "“don’t worry,” she said — it’s only 20 °C, 5 m² for €100, and the Mac™ from Mamma® isn’t lost",
}


@pytest.mark.parametrize("language", SAMPLES)
@pytest.mark.parametrize("lowercase", [True, False])
def test_text_of_another_encoding(tmp_path: Path, language: str, lowercase: bool) -> None:
    rng = random.Random(7)
    words = SAMPLES[language].split() if language != "zh" else list(SAMPLES[language])
    good = texts(20, words=words)
    bad = [[line.encode().decode("cp1252", "ignore") for line in lines] for lines in texts(20, words=words, seed=1)]
    mixed = [lines if rng.random() < 0.5 else broken for lines, broken in zip(good, bad, strict=True)]
    for name, documents, status in (("good", good, "ok"), ("mixed", mixed, "bad")):
        vocab = tmp_path / f"{name}.txt"
        text = tmp_path / f"{name}-text"
        text.mkdir()
        (text / "all.txt").write_text("\n".join(line for lines in documents for line in lines), "utf-8")
        flags = ["--config=bert_base", f"--config.corpus.options.paths=('{text}/*.txt',)", "--config.vocab.size=400"]
        case = f"--config.vocab.lowercase={lowercase}"
        assert main.run(["vocab", *flags, "--config.corpus.options.format=sentences", case, f"--output={vocab}"]) == 0
        corpus = build(tmp_path / name, documents, vocab, case)
        assert judge(corpus, vocab).check("encoding").status == status


def test_what_the_build_counted_in_the_text(clean: Path, vocab: Path, tmp_path: Path) -> None:
    corpus = shutil.copytree(clean, tmp_path / "corpus")
    manifest = json.loads((corpus / "manifest.json").read_text())
    for hits, status in ((0, "ok"), (manifest["text_bytes"] // 2000, "bad")):
        manifest["text_hits"] = {"encoding": {"replacement_characters": hits}}
        (corpus / "manifest.json").write_text(json.dumps(seal(manifest)))
        found = judge(corpus, vocab)
        assert found.check("encoding").status == status
        assert judge(corpus).check("encoding").status == status


def test_another_vocabulary_than_the_corpus_was_made_with(clean: Path, tmp_path: Path) -> None:
    found = judge(clean, write_vocab(tmp_path / "other.txt", WORDS[:-1]))
    assert statuses(found)["vocabulary"] == "bad"
    assert statuses(found)["unknown_tokens"] == "skip"  # ids of it would mean other words
    assert found.check("duplicate_lines").status == "ok"


def test_without_a_vocabulary_the_rest_is_judged(clean: Path, vocab: Path) -> None:
    found = judge(clean)
    assert set(statuses(found).values()) == {"skip"}
    beside = clean.parent / "vocab.txt"
    beside.write_bytes(vocab.read_bytes())
    assert statuses(judge(clean)) == {}  # as in a run's folder
    beside.write_text(vocab.read_text() + "more\n")
    assert set(statuses(judge(clean)).values()) == {"skip"}
    beside.unlink()


def test_the_command(clean: Path, vocab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["inspect", f"--corpus={clean}", f"--vocab={vocab}", "--max_length=32,128"]
    assert main.run([*flags, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert list(record) == ["corpus", "verdict", "checks"]
    assert list(record["checks"]["next_sentence_balance"]) == ["status", "figure", "fix", "facts", "text"]
    assert main.run(flags) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "verdict: ok"
    assert len([line for line in lines if line.startswith("ok ")]) == len(record["checks"])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--corpus={tmp}/nothing"], "nothing is not a corpus"),
        (["--corpus={clean}", "--vocab={tmp}/none.txt"], "no vocabulary file"),
        (["--corpus={clean}", "--max_length=128;512"], "give whole numbers, such as"),
        (["--corpus={clean}", "--max_length=4"], "give row lengths of 5 to 1,000,000"),
        (["--corpus={clean}", "--max_length=100000000000"], "give row lengths of 5 to 1,000,000"),
    ],
)
def test_bad_input_is_one_line(flags, said, clean, vocab, tmp_path, capsys) -> None:
    given = [flag.format(tmp=tmp_path, clean=clean, vocab=vocab) for flag in flags]
    assert main.run(["inspect", *given]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert said in error
    assert error.count("\n") == 1


def test_no_false_alarm_on_real_prose(tmp_path: Path) -> None:
    """Documentation of two packages, with a vocabulary learned from it."""
    flags = [
        "--config=quickstart",
        "--config.corpus.options={'packages': ('optax', 'flax')}",
        "--config.vocab.size=6000",
    ]
    vocab = tmp_path / "vocab.txt"
    assert main.run(["vocab", *flags, f"--output={vocab}"]) == 0
    assert main.run(["corpus", *flags, f"--config.vocab.path={vocab}", f"--output={tmp_path / 'corpus'}"]) == 0
    found = judge(tmp_path / "corpus")
    assert not {name: status for name, status in statuses(found).items() if status in ("bad", "skip")}
    assert 1 < found.check("tokens_a_word").facts["fertility"] < 1.6


def test_chinese_prose_with_its_vocabulary_and_with_another(tmp_path: Path, shared_data: Callable[[str], Path]) -> None:
    with tarfile.open(shared_data("zh_modern_prose") / "zh_modern_prose.tar.xz") as archive:
        members = (member for member in archive if member.name.endswith("target.txt"))
        files = [archive.extractfile(member) for member in itertools.islice(members, 20)]
        documents = [file.read().decode().splitlines() for file in files if file]
    for name, wrong in (("chinese", set()), ("uncased", {"unknown_tokens"})):
        vocab = shared_data("vocab") / f"bert-base-{name}-vocab.txt"
        found = judge(build(tmp_path / name, documents, vocab), vocab)
        assert {check for check, status in statuses(found).items() if status == "bad"} == wrong


def wrapped(documents: list[list[str]], width: int = 10) -> list[list[str]]:
    """The words of each document in lines of ``width``."""
    words = [" ".join(lines).split() for lines in documents]
    return [[" ".join(of[i : i + width]) for i in range(0, len(of), width)] for of in words]


def test_hard_wrapped_text_is_named_with_the_flag_that_mends_it(tmp_path: Path, vocab: Path) -> None:
    check = judge(build(tmp_path / "a", wrapped(texts()), vocab), vocab).check("line_ends")
    lines = [line for document in stored(tmp_path / "a" / "corpus", "train") for line in document]
    dot = vocab.read_text().split("\n").index(".")
    unmarked = [line for line in lines if line[-1] != dot]
    assert check.facts["lines"] == len(lines)
    assert check.facts["unmarked_share"] == len(unmarked) / len(lines) > 0.8
    assert check.facts["unmarked_mean_tokens"] == pytest.approx(sum(map(len, unmarked)) / len(unmarked))
    assert (check.status, check.fix) == ("warn", "--config.corpus.options.format=free")
    mended = build(tmp_path / "b", wrapped(texts()), vocab, "--config.corpus.options.format=free")
    assert judge(mended, vocab).check("line_ends").status == "ok"


def test_control_characters_are_no_wrong_encoding(clean: Path, vocab: Path, tmp_path: Path) -> None:
    corpus = shutil.copytree(clean, tmp_path / "corpus")
    manifest = json.loads((corpus / "manifest.json").read_text())
    manifest["text_hits"]["encoding"]["control_characters"] = manifest["text_bytes"] // 2000
    (corpus / "manifest.json").write_text(json.dumps(seal(manifest)))
    found = judge(corpus, vocab)
    assert found.check("encoding").status == "ok"
    assert found.check("control_characters").status == "warn"
    assert "tr -d" in found.check("control_characters").fix


def test_rows_are_those_of_the_recipe_or_of_the_run(clean: Path, vocab: Path, tmp_path: Path, capsys) -> None:
    run = tmp_path / "run"
    shutil.copytree(clean, run / "corpus")
    (run / "vocab.txt").write_bytes(vocab.read_bytes())
    phases = {"phase1": {"max_length": 24}, "phase2": {"max_length": 48}}
    config = {"objective": {"name": "mlm_nsp"}, "phases": phases}
    (run / "run.json").write_text(json.dumps({"config": config}))

    def balance(*flags: str) -> dict[str, object]:
        main.run(["inspect", f"--corpus={run / 'corpus'}", "--json", *flags])
        return json.loads(capsys.readouterr().out)["checks"].get("next_sentence_balance", {}).get("facts", {})

    assert list(balance()) == ["24", "48"]
    assert list(balance("--max_length=32")) == ["32"]
    assert list(balance("--config=quickstart")) == ["32", "128"]
    assert balance("--config=roberta") == {}  # has no pairs
    assert balance("--config=quickstart", "--config.objective.name=mlm") == {}  # pairs, and no next sentences
    assert Fixes({}, phases={"a": 24, "b": 48}).longer_rows(24) == "--config.phases.a.max_length=48"


def test_a_mixture_is_inspected_part_by_part(clean: Path, vocab: Path, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "run" / "corpus"
    shutil.copytree(clean, folder / "new")
    shutil.copytree(build(tmp_path / "old", texts(60) * 2, vocab), folder / "old")
    (tmp_path / "run" / "vocab.txt").write_bytes(vocab.read_bytes())
    capsys.readouterr()
    assert main.run(["inspect", f"--corpus={folder}", "--json", "--max_length=64"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert (list(record["parts"]), record["verdict"]) == (["new", "old"], "bad")
    assert [part["verdict"] for part in record["parts"].values()] == ["ok", "bad"]
    assert record["parts"]["new"]["checks"]["vocabulary"]["status"] == "ok"
    assert main.run(["inspect", f"--corpus={folder}", "--max_length=64"]) == 1
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("part ")] == [
        "part new:",
        "part old:",
    ]
