"""Tells the senses of words by contextual vectors, by one averaged vector a word, and by word2vec on the same text.

    .venv-bench/bin/python -m tests.benchmarks.senses --init=RUN --text=BOOKS --labelled=CONLL --workdir=DIR \\
        [--seeds=0,1,2] [--layer=second_to_last] [--words=2000000] [--senses=30]

RUN is a trained model; where it says ``{seed}``, each seed has its own, such as ``runs/mlm_{seed}``. BOOKS is a text
file, or a tar of text files (``../shared/data/en_books/en_books.tar.xz``); paragraphs are drawn until there are
``--words``. CONLL is a folder with the train, valid and test files of CoNLL-2003 (``../shared/data/conll2003_ner``).

**The words** are found by rule. An occurrence of a word, in lower case, has a sense if it is outside of names (O), a
part of a person's name (PER), or by itself the whole name of a place, an organization or something else (LOC, ORG,
MISC); a word inside a longer name ("of" in "Bank of England") has none. Sentences that were seen before are left out.
A word's senses are its two most frequent ones, each with at least 10 occurrences in at least 3 documents; the 30 words
with the most occurrences of the rarer sense are taken. So some are homonyms (*mark*, *bill*, *rose*: a person or a
word), others regular polysemy (*chicago*: a city or its club). Everything is in lower case, also for a cased model,
so that the capital letter does not tell.

**An occurrence** is represented by the mean of its pieces' vectors (contextual), or, since one vector a word cannot
tell occurrences apart, by the mean of the vectors of the words within 5 of it: of averaged contextual vectors
(Bommasani et al. 2020) or of word2vec's (skip-gram, Mikolov et al. 2013), both of the words that occur 5 times in the
text. Its sense is the one whose centroid, over the occurrences in all other documents, is nearest by cosine; their mean
is subtracted first, since what all have in common, the word itself, would outweigh the rest (Ethayarajh 2019). The
score is the mean recall of a word's two senses, 0.5 for whoever always says the same.

**Neighbours** of classic homonyms in the text: the words whose averaged vectors are nearest to the contextual vectors
of two occurrences, those nearest to the centres of 2-means, and to the word's averaged and word2vec vectors.

A seed that is done is read from DIR. table.md and table.json are written there.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import math
import random
import re
import sys
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.examples.conll import Reader
from bert_jax.examples.reading import DataRecord, need, whole_text
from bert_jax.experiments.output import markdown
from bert_jax.features.extract import check_layers
from bert_jax.interchange.loading import load
from bert_jax.program import say
from bert_jax.storage import files, reading
from bert_jax.text.words import split_words
from tests.benchmarks.sense_vectors import (
    HOMONYMS,
    LEAST_COUNT,
    Occurrence,
    OfModel,
    Row,
    of_model,
    window,
    within,
    word2vec,
)

FILES = ("train.txt", "valid.txt", "test.txt")
LAYERS = ("embeddings", "second_to_last", "last", "sum_last_four", "concat_last_four")  # one vector a token
LEAST, DOCUMENTS = 10, 3  # occurrences and documents of a sense
ROW = 60  # words of a row of text
SHOWN, KNOWN = 6, 20  # neighbours shown; what they and homonyms occur at least in the text
MAJORITY, CONTEXTUAL, AVERAGED, WORD2VEC = "majority sense", "contextual", "averaged contextual", "word2vec"
KINDS = (CONTEXTUAL, AVERAGED, WORD2VEC, MAJORITY)
GROUPS = ("all words", "name or common word", "two kinds of names")


def find_words(folder: str, number: int = 30, least: int = LEAST) -> dict[str, list[Occurrence]]:
    """Return the words with two senses and their occurrences, by the rule above.

    Raises:
      UserError: a file is missing or bad, or no word has two senses.
    """
    found: dict[str, dict[str, list[Occurrence]]] = {}
    seen = set()
    for name in FILES:
        for record in Reader().read(need(str(Path(folder) / name))):
            if not isinstance(record, DataRecord):
                raise UserError(f"{record.where} {record.reason}; mend it")
            if "tags" not in record:
                raise UserError(f"{record.where} has words without tags; give the files of CoNLL-2003")
            words = tuple(word.lower() for word in record["words"])
            if words not in seen:
                seen.add(words)
                for place, sense in enumerate(_senses(record["tags"])):
                    if sense and words[place].isalpha():
                        one = Occurrence(words, place, sense, f"{name}:{record['document']}")
                        found.setdefault(words[place], {}).setdefault(sense, []).append(one)
    two = {word: sorted(senses.values(), key=len, reverse=True)[:2] for word, senses in found.items()}
    ambiguous = {word: senses for word, senses in two.items() if len(senses) == 2 and _enough(senses, least)}
    if not ambiguous:
        raise UserError(f"no word of {folder} has two senses with {least} occurrences each; give a larger folder")
    rarest_last = sorted(ambiguous, key=lambda word: (-len(ambiguous[word][1]), word))
    return {word: [one for sense in ambiguous[word] for one in sense] for word in rarest_last[:number]}


def _senses(tags: Sequence[str]) -> Iterator[str]:
    for tag, following in zip(tags, [*tags[1:], "O"], strict=True):
        prefix, _, kind = tag.partition("-")
        whole = prefix == "B" and not following.startswith("I-")
        yield tag if tag == "O" else kind if kind == "PER" or whole else ""


def _enough(senses: Sequence[Sequence[Occurrence]], least: int) -> bool:
    return all(len(of) >= least and len({one.document for one in of}) >= DOCUMENTS for of in senses)


def read_rows(path: str, most: int) -> list[Row]:
    """Return rows of a text, of at most 60 words each: paragraphs in random order until there are ``most`` words.

    Raises:
      UserError: there is no such file, or no text in it.
    """
    source, rows, count = need(path), [], 0
    if tarfile.is_tarfile(source):
        with tarfile.open(source) as archive:
            opened = (archive.extractfile(member) for member in archive if member.isfile())
            texts = [file.read().decode("utf-8", "replace") for file in opened if file]
    else:
        texts = [whole_text(source)]
    paragraphs = [part for text in texts for part in re.split(r"\n\s*\n", text) if not part.lstrip().startswith("#")]
    random.Random(0).shuffle(paragraphs)
    for paragraph in paragraphs:
        words = tuple(word.text for word in split_words(paragraph.lower()))
        rows += [words[first : first + ROW] for first in range(0, len(words), ROW)]
        count += len(words)
        if count >= most:
            break
    if not rows:
        raise UserError(f"{path} has no text; give a text file or a tar of text files")
    return rows


def tell(vectors: np.ndarray, senses: Sequence[str], documents: Sequence[str]) -> list[str]:
    """Return the sense of each occurrence as the others tell it, those of its own document left out.

    It is the sense whose centroid is nearest by cosine, in vectors [N, D] that get length 1 and then lose the mean of
    the other documents' ones; the more frequent sense if none is nearer.
    """
    unit, given, where = _unit(vectors), np.array(senses), np.array(documents)
    told = given.copy()
    for document in dict.fromkeys(documents):
        others = where != document
        names = [name for name, _ in Counter(given[others].tolist()).most_common()]
        common = unit[others].mean(axis=0)
        centroids = _unit(np.array([unit[others & (given == name)].mean(axis=0) - common for name in names]))
        cosines = _unit(unit[~others] - common) @ centroids.T
        told[~others] = np.array(names)[np.argmax(np.round(cosines, 6), axis=1)]
    return told.tolist()


def _unit(vectors: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths > 1e-9, lengths, np.inf)  # what has no length has no direction


def balanced_accuracy(senses: Sequence[str], told: Sequence[str]) -> float:
    """Return the mean over the senses of the share of their occurrences that are told rightly."""
    given, right = np.array(senses), np.array(senses) == np.array(told)
    return float(np.mean([right[given == sense].mean() for sense in np.unique(given)]))


def score(found: Mapping[str, Sequence[Occurrence]], represent: Callable[[str], np.ndarray]) -> dict[str, float]:
    """Return the balanced accuracy of each word. ``represent`` returns the vectors [N, D] of a word's occurrences."""
    result = {}
    for word, of in found.items():
        senses = [one.sense for one in of]
        result[word] = balanced_accuracy(senses, tell(represent(word), senses, [one.document for one in of]))
    return result


def neighbours(vector: np.ndarray, vectors: Mapping[str, np.ndarray], counts: Counter[str], word: str) -> list[str]:
    """Return the words, of those that occur 20 times in the text, nearest to ``vector`` by cosine, without ``word``."""
    known = [name for name in vectors if counts[name] >= KNOWN and name != word and name.isalpha()]
    cosines = _unit(np.array([vectors[name] for name in known])) @ _unit(vector)
    return [known[number] for number in np.argsort(-cosines)[:SHOWN]]


def homonym_table(model: OfModel, static: Mapping[str, np.ndarray], counts: Counter[str]) -> list[dict[str, Any]]:
    """Return the neighbours of each homonym that occurs often enough, as plain data."""
    from scipy.cluster.vq import kmeans2

    table = []
    for word in HOMONYMS:
        texts, vectors = model.homonyms.get(word, ([], np.empty(0)))
        if len(texts) < KNOWN or word not in static:
            continue
        unit = _unit(vectors)
        centres, _ = kmeans2(unit, 2, minit="++", rng=np.random.default_rng(0))
        for number in np.argmax(unit @ _unit(centres).T, axis=0):
            near = neighbours(vectors[number], model.averaged, counts, word)
            table.append({"word": word, "of": texts[number], "neighbours": near})
        for kind, of in ((AVERAGED, model.averaged), (WORD2VEC, static)):
            table.append({"word": word, "of": kind, "neighbours": neighbours(of[word], of, counts, word)})
    return table


def two_errors(values: np.ndarray) -> float:
    """Return two standard errors of the mean of ``values`` [words, seeds], over words and seeds.

    The variances of both means are added, which counts what is of neither alone twice: rather too much.
    """
    variance = 0.0
    for axis in (0, 1):
        means = values.mean(axis=axis)
        variance += means.var(ddof=1) / len(means) if len(means) > 1 else 0.0
    return 2 * math.sqrt(variance)


def summary(found: Mapping[str, Sequence[Occurrence]], scores: Sequence[Mapping[str, Mapping[str, float]]]) -> dict:
    """Return means and differences with two standard errors, of all words and of both groups, as plain data.

    ``scores``: of each seed, kind -> word -> score.
    """
    common = {word: any(one.sense == "O" for one in of) for word, of in found.items()}
    chosen = {GROUPS[0]: list(found), GROUPS[1]: [w for w in found if common[w]]}
    chosen[GROUPS[2]] = [w for w in found if not common[w]]
    means, differences = [], []
    for group, words in chosen.items():
        if not words:
            continue
        of = {kind: np.array([[seed[kind][word] for seed in scores] for word in words]) for kind in KINDS}
        for kind, values in of.items():
            entry = {"group": group, "words": len(words), "kind": kind, "mean": float(values.mean())}
            means.append(entry | {"two_errors": two_errors(values)})
        for one, other in itertools.combinations(KINDS, 2):
            gap = of[one] - of[other]
            entry = {"group": group, "difference": f"{one} - {other}", "mean": float(gap.mean())}
            shown = len(words) > 1 and abs(entry["mean"]) > two_errors(gap)
            differences.append(entry | {"two_errors": two_errors(gap), "verdict": "shown" if shown else "not shown"})
    return {"means": means, "differences": differences}


def text_of(record: Mapping[str, Any]) -> str:
    """Return ``table.json`` as Markdown."""
    means = [(m["group"], str(m["words"]), m["kind"], _number(m, "")) for m in record["means"]]
    gaps = [(d["group"], d["difference"], _number(d, "+"), d["verdict"]) for d in record["differences"]]
    head, seeds = record["words"][0], ", ".join(map(str, record["seeds"]))
    words = [tuple(f"{v:.2f}" if isinstance(v, float) else str(v) for v in one.values()) for one in record["words"]]
    near = [(one["word"], one["of"].replace("|", "\\|"), ", ".join(one["neighbours"])) for one in record["neighbours"]]
    parts = [
        "# One sense or many?",
        f"Balanced accuracy of telling two senses ± two standard errors over words and seeds ({seeds}). "
        f"Vectors of {record['init']}, {record['layer']}; {record['text_words']:,} words of text; of the words around "
        f"an occurrence, {record['covered']:.0%} have a vector of their own.",
        markdown((("words", "number", "vectors", "balanced accuracy"), means)),
        "Paired differences ± two standard errors; shown: beyond these.",
        markdown((("words", "difference", "mean", "verdict"), gaps)),
        "## The words",
        markdown((tuple(head), words)),
        "## Neighbours",
        markdown((("word", "of", "neighbours"), near)),
    ]
    return "\n\n".join(parts) + "\n"


def _number(entry: Mapping[str, Any], sign: str) -> str:
    return f"{entry['mean']:{sign}.3f} ± {entry['two_errors']:.3f}"


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Return the content of table.json, and write the results of each seed when it is done.

    Raises:
      UserError: gensim, a model, data or a number is missing or wrong; before anything is computed.
    """
    if importlib.util.find_spec("gensim") is None:
        raise UserError(
            "word2vec needs gensim, which is not installed; take .venv-bench (make .venv-bench/base.stamp), or install "
            "the extra bench: pip install -e .[bench]"
        )
    if not re.fullmatch(r"\d+(,\d+)*", given.seeds) or min(given.words, given.senses) < 1:
        raise UserError("--seeds takes whole numbers such as 0,1,2; --words and --senses are at least 1")
    found = find_words(given.labelled, given.senses)
    inits = {int(seed): given.init.replace("{seed}", seed) for seed in given.seeds.split(",")}
    models = {init: load(init) for init in dict.fromkeys(inits.values())}
    for model in models.values():
        check_layers([given.layer], model.config.num_layers)
    rows = read_rows(given.text, given.words)
    every = Counter(word for row in rows for word in row)
    counts = Counter({word: count for word, count in every.items() if count >= LEAST_COUNT})
    if not counts:
        raise UserError(f"{given.text} has no word {LEAST_COUNT} times; give a longer text, or more --words")
    computed: dict[str, OfModel] = {}
    seeds = []
    for seed, init in inits.items():
        record, run = files.as_path(given.workdir) / f"seed-{seed}.json", models[init].run
        about = {"init": init, "run": run and run.key, "layer": given.layer, "senses": list(found)}
        about |= {"text": given.text, "words": every.total(), "kept": len(counts)}
        done = reading.read_object(record) or {}
        if done.get("about") != about:
            say(f"seed {seed}: {every.total():,} words of text by {init}, then by word2vec")
            if init not in computed:
                computed = {init: of_model(models[init], given.layer, found, rows, counts)}
            static = word2vec(rows, len(next(iter(computed[init].averaged.values()))), seed)
            done = {"about": about, **results(found, computed[init], static, counts)}
            files.write_text(record, json.dumps(done) + "\n")
        seeds.append(done)
    scores = [done["scores"] for done in seeds]
    record = {"init": given.init, "layer": given.layer, "seeds": list(inits), "text_words": every.total()}
    record |= {"covered": covered(found, counts), **summary(found, scores), "words": words_table(found, scores)}
    return record | {"neighbours": seeds[0]["neighbours"], "scores": scores}


def results(
    found: Mapping[str, Sequence[Occurrence]], model: OfModel, static: Mapping[str, np.ndarray], counts: Counter[str]
) -> dict[str, Any]:
    """Return the scores, kind -> word -> score, and the neighbours of one seed."""
    scores = {MAJORITY: dict.fromkeys(found, 0.5), CONTEXTUAL: score(found, model.occurrences.__getitem__)}
    for kind, vectors in ((AVERAGED, model.averaged), (WORD2VEC, static)):
        around = {word: np.array([window(one, vectors) for one in of]) for word, of in found.items()}
        scores[kind] = score(found, around.__getitem__)
    return {"scores": scores, "neighbours": homonym_table(model, static, counts)}


def words_table(found: Mapping[str, Sequence[Occurrence]], scores: Sequence[Mapping]) -> list[dict[str, Any]]:
    """Return a line for each word: its senses with their counts, and the mean score of each kind."""
    table = []
    for word, of in found.items():
        senses = ", ".join(f"{count} {sense}" for sense, count in Counter(one.sense for one in of).most_common())
        means = {kind: float(np.mean([seed[kind][word] for seed in scores])) for kind in KINDS[:-1]}
        table.append({"word": word, "senses": senses, **means})
    return table


def covered(found: Mapping[str, Sequence[Occurrence]], counts: Counter[str]) -> float:
    """Return which share of the words around the occurrences has a vector of its own."""
    around = [word in counts for of in found.values() for one in of for word in within(one)]
    return sum(around) / max(1, len(around))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.senses", description=__doc__.splitlines()[0])
    parser.add_argument("--init", required=True, help="a trained model; {seed} in it becomes each seed")
    parser.add_argument("--text", required=True, help="a text file, or a tar of text files")
    parser.add_argument("--labelled", required=True, help="a folder with the files of CoNLL-2003")
    parser.add_argument("--workdir", required=True, help="where results go")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--layer", default="second_to_last", choices=LAYERS)
    parser.add_argument("--words", type=int, default=2_000_000, help="words of text (default: 2,000,000)")
    parser.add_argument("--senses", type=int, default=30, help="words with two senses, at most (default: 30)")
    given = parser.parse_args(argv)
    try:
        record = measure(given)
        text = text_of(record)
        files.write_text(files.as_path(given.workdir) / "table.json", json.dumps(record, indent=2) + "\n")
        files.write_text(files.as_path(given.workdir) / "table.md", text)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
