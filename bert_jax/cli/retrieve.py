"""Search texts by meaning; with relevances, score the search beside BM25."""

from __future__ import annotations

import argparse
import json

from bert_jax.cli.flags import add_pooling, add_workdir, whole_number
from bert_jax.program import say
from bert_jax.reporting.progress import progress_notes
from bert_jax.storage import files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_workdir(parser, "a run, fine-tuned on sentence_embeddings or not")
    add(
        "--corpus",
        help="documents: plain text, one a line, or JSON Lines with _id, title and text (with --query, default: the "
        "sentences of the text that the run was pretrained on, unless config.corpus.path named a built corpus)",
    )
    add("--queries", help="queries: plain text, one a line, or JSON Lines with _id and text")
    add("--query", action="append", help="instead of a file, a text to search for; may be given several times")
    add("--qrels", help="relevances: TSV with query-id, corpus-id and score")
    add("--squad", help="instead of these, a file in SQuAD's format: find each question's paragraph")
    add("--top", type=whole_number(1), default=10, help="documents per query (default: 10)")
    add("--output", help="write the documents of every query here, one JSON object per line")
    add("--baseline", choices=["bm25", "none"], help="what is scored beside the model (default: bm25)")
    add_pooling(parser, "pooling of the vectors (default: as trained, or as the model's files say; else mean)")
    add("--max_length", type=int, help="most tokens of a text (default: as for --pooling)")
    add("--batch_size", type=whole_number(1), default=64, help="texts that are encoded together (default: 64)")
    add("--json", action="store_true", help="print JSON: the scores, or what --query finds")


def run(arguments: argparse.Namespace) -> None:
    from bert_jax.errors import UserError
    from bert_jax.examples.collection import of_documents, read_collection, read_squad, read_texts
    from bert_jax.features.extract import Extractor
    from bert_jax.features.retrieval import as_records, as_table, bm25_class, check_similarity, retrieve
    from bert_jax.features.sentence_vectors import DOCUMENT_PROMPTS, QUERY_PROMPTS
    from bert_jax.interchange.loading import load
    from bert_jax.runs.own_text import own_sentences
    from bert_jax.runs.prediction import write_predictions

    given = arguments
    if bool(given.squad) == bool(given.corpus or given.queries or given.query or given.qrels):
        raise UserError("give --corpus with --query or --queries, with --qrels to score the search; or only --squad")
    if not given.squad and bool(given.queries) == bool(given.query):
        raise UserError("--corpus needs --queries=FILE, or --query=TEXT for each text to search for")
    if given.queries and not given.corpus:
        raise UserError("--queries needs --corpus=FILE, the texts to search")
    if given.query and given.qrels:
        raise UserError("--qrels names the queries of a file; give --queries with it, or leave --qrels out")
    if given.baseline and not (given.qrels or given.squad):
        raise UserError("--baseline is scored beside the model, which needs --qrels or --squad; leave it out")
    if given.json and given.output and not (given.qrels or given.squad):
        raise UserError("--output writes what is found, in JSON; --json prints scores, or the same: leave one out")
    if given.output:
        files.check_writable(given.output)
    given.baseline = given.baseline or "bm25"
    if given.squad:
        collection = read_squad(given.squad)
    elif given.query and not given.corpus:
        sentences, more = own_sentences(given.workdir)
        say(f"{'the first ' if more else ''}{len(sentences):,} sentences of the run's own text are searched")
        collection = of_documents(sentences, given.query)
    elif given.query:
        collection = of_documents(read_texts(given.corpus)[0], given.query)
    else:
        collection = read_collection(given.corpus, given.queries, given.qrels)
    if given.baseline == "bm25" and collection.relevances:
        bm25_class()
    model = load(given.workdir, given.step)
    model = model.pooled_by(given.pooling, say)
    vectors = model.vectors
    similarity = check_similarity(vectors)
    max_length = given.max_length or vectors.max_length or model.facts.get("max_length")
    extractor = Extractor(model, ["sentence"], max_length, given.batch_size)
    for what, names in (("query", QUERY_PROMPTS), ("document", DOCUMENT_PROMPTS)):
        if prompt := vectors.of_role(names):
            say(f"each {what} is read with the model's prompt {prompt!r} before it")
    found = retrieve(extractor, collection, given.top, given.baseline, progress_notes(say, what="texts encoded"))
    records = as_records(collection, found.rankings)
    if given.output:
        write_predictions(given.output, records)
    if not found.metrics:
        for record in () if given.output else records:
            print(as_table(record) if given.query and not given.json else json.dumps(record, ensure_ascii=False))
        return
    if given.json:
        print(json.dumps(found.metrics))
        return
    print(
        f"{len(collection.documents):,} documents, {len(collection.queries):,} queries; step {model.step:,}, "
        f"{' + '.join(vectors.pooling)} pooling, {'dot product, ' * (similarity == 'dot')}at most "
        f"{extractor.max_length} tokens"
    )
    print("  ".join([f"{'':<8}", *(f"{name:>10}" for name in found.metrics["model"])]))
    for name, metrics in found.metrics.items():
        print("  ".join([f"{name:<8}", *(f"{value:>10.4f}" for value in metrics.values())]))
