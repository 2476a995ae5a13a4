"""Starting from a model: rows follow their pieces to another vocabulary, and missing parts start fresh."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.interchange.hugging_face import export_model
from bert_jax.interchange.initial import continued_seed, start_from, with_vocabulary_rows
from bert_jax.interchange.loading import load
from bert_jax.interchange.trained_model import RunKey, TrainedModel
from bert_jax.interchange.workdir import import_into_workdir
from bert_jax.models.encoders import modernbert, transformer_xl
from bert_jax.models.model import fresh_params
from bert_jax.models.transformer import stack_layers
from bert_jax.recipes.architecture import Architecture
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.runs.model_choice import choose_model, overridden_settings, with_memory_of_recipe
from bert_jax.text.tokenizer import wordpiece
from bert_jax.training.state import TrainState
from tests.models.helpers import as_jax, random_params, tiny

OLD = wordpiece((*SPECIAL_TOKENS, "in", "out", "##put", "##in", "##g", "the", "g"))
CONFIG = tiny(vocab_size=OLD.size)
PARAMS = random_params(CONFIG)


def words(params: Any) -> np.ndarray:
    return np.asarray(params["encoder"]["embeddings"]["word_embeddings"])


def vocabulary_leaves(params: Any) -> tuple[np.ndarray, np.ndarray]:
    """What is looked up by piece: word embeddings [V, D] and output bias [V]."""
    return words(params), np.asarray(params["mlm_head"]["output_bias"])


def state_of(params: Any) -> TrainState:
    """A state of which only the parameters and the step matter here."""
    return TrainState(
        **{field.name: None for field in dataclasses.fields(TrainState)}
        | {"params": as_jax(params), "step": jax.numpy.asarray(7)}
    )


def test_kept_pieces_keep_their_rows() -> None:
    order = np.random.default_rng(0).permutation(OLD.size)[:-2]  # two pieces go, unless they are special
    kept = [OLD.vocab[i] for i in order] + [t for t in SPECIAL_TOKENS if OLD.vocab.index(t) not in order]
    new = wordpiece(kept)
    params, added = with_vocabulary_rows(PARAMS, OLD, new)
    assert added == 0
    for before, after in zip(vocabulary_leaves(PARAMS), vocabulary_leaves(params), strict=True):
        assert len(after) == new.size
        for i, piece in enumerate(new.vocab):
            np.testing.assert_array_equal(after[i], before[OLD.vocab.index(piece)])


def test_the_rest_of_the_model_is_untouched() -> None:
    params, _ = with_vocabulary_rows(PARAMS, OLD, wordpiece((*OLD.vocab, "input")))

    def blank(tree: Any) -> Any:
        tree = jax.tree.map(np.asarray, tree)
        tree["encoder"]["embeddings"]["word_embeddings"] = tree["mlm_head"]["output_bias"] = np.zeros(1)
        return tree

    assert jax.tree.structure(params) == jax.tree.structure(PARAMS)
    jax.tree.map(np.testing.assert_array_equal, blank(params), blank(PARAMS))


@pytest.mark.parametrize(
    ("piece", "parts"),
    [
        ("input", ["in", "##put"]),
        ("outputing", ["out", "##put", "##in", "##g"]),
        ("INPUT", ["in", "##put"]),  # as the old tokenizer reads it
        ("##ing", ["##in", "##g"]),  # inside a word
        ("##theg", ["the", "##g"]),  # "##the" is not there
        ("zebra", ["[UNK]"]),
        ("\u200d", ["[UNK]"]),  # the old tokenizer drops it
    ],
)
def test_new_pieces_start_at_the_mean_of_their_old_parts(piece: str, parts: list[str]) -> None:
    new = wordpiece((*SPECIAL_TOKENS, piece, *OLD.vocab[5:]))
    params, added = with_vocabulary_rows(PARAMS, OLD, new)
    assert added == 1
    rows = [OLD.vocab.index(part) for part in parts]
    for before, after in zip(vocabulary_leaves(PARAMS), vocabulary_leaves(params), strict=True):
        np.testing.assert_allclose(after[5], before[rows].mean(axis=0), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("part", ["pooler", "token_head", "news_token_head"])
def test_what_a_modernbert_has_before_its_last_layer_goes_on_from_its_head_of_pretraining(part: str) -> None:
    """As transformers has it, whose classes call it ``head``; "news" is one of several tasks."""
    config = modernbert.Config(OLD.size, 32, 2, 2, 48)
    params = jax.tree.map(np.asarray, fresh_params(config))
    fresh = {"encoder": params["encoder"], part: jax.tree.map(np.zeros_like, params["pooler"]), "classifier": {}}
    initial = TrainedModel("there", {name: params[name] for name in ("encoder", "mlm_head")}, config, OLD)
    notes: list[str] = []
    state = start_from(initial, config, OLD, notes.append)(state_of(fresh))
    for name in ("transform", "layer_norm"):
        jax.tree.map(np.testing.assert_array_equal, state.params[part][name], params["mlm_head"][name])
    begun = f"begun as its head of pretraining: {part}"
    assert notes == [f"starting from there; {begun}; fresh: classifier; left out: mlm_head"]


def test_missing_parts_start_fresh_and_the_rest_is_taken_over() -> None:
    fresh = random_params(CONFIG, seed=3)
    initial = TrainedModel("there", {"encoder": PARAMS["encoder"]}, CONFIG, OLD)
    notes: list[str] = []
    state = start_from(initial, CONFIG, OLD, notes.append)(state_of(fresh))
    expected = fresh | {"encoder": PARAMS["encoder"]}
    jax.tree.map(np.testing.assert_array_equal, state.params, expected)
    assert int(state.step) == 0
    assert notes == ["starting from there; fresh: mlm_head, nsp_head, pooler"]


def test_pretraining_has_the_memory_of_its_recipe() -> None:
    """A recipe such as ``continue`` has no such key, and its rows do not go on from batch to batch."""
    old = transformer_xl.Config(OLD.size, 16, 2, 2, 32, memory_length=8, span="same length")
    initial = TrainedModel("there", {}, old, OLD)
    for keys, memory, span in (
        ({}, 0, "all"),
        ({"encoder": "transformer_xl", "memory_length": 4}, 4, "same length"),
        ({"encoder": "transformer_xl", "memory_length": 4, "span": "all"}, 4, "all"),
    ):
        architecture = Architecture.of(keys, OLD.size)
        chosen = choose_model(architecture, OLD.size, initial)
        found: Any = with_memory_of_recipe(chosen, architecture)
        assert (found.memory_length, found.span, found.num_layers) == (memory, span, 2)
    assert choose_model(Architecture.of({}, OLD.size), OLD.size, initial) == old  # in fine-tuning


@pytest.mark.parametrize("layers", ["unrolled", "scanned"])
def test_a_decoder_begins_as_a_bert_without_cross_attention(layers: str) -> None:
    """The architecture is the recipe's with the sizes of the BERT, whose head predicts what the decoder writes."""
    keys = {"encoder": "seq2seq", "layers": layers, "dropout_rate": 0.2}
    initial, notes = TrainedModel("there", PARAMS, CONFIG, OLD), list[str]()
    architecture = Architecture.of(keys, 100)
    config = choose_model(architecture, OLD.size, initial)
    assert (config.encoder, config.vocab_size, config.num_layers, config.dropout_rate) == ("seq2seq", OLD.size, 2, 0.2)
    assert overridden_settings(architecture, ["model.encoder"], initial) == []
    wide = Architecture.of({**keys, "hidden_size": 64, "num_heads": 4}, 100)
    with pytest.raises(UserError, match="--config.model.hidden_size=64 contradicts --init=there, whose model has hidd"):
        overridden_settings(wide, ["model.hidden_size"], initial)
    fresh = jax.tree.map(np.asarray, fresh_params(config))
    state = start_from(initial, config, OLD, notes.append)(state_of({n: fresh[n] for n in ("encoder", "mlm_head")}))
    assert notes == ["starting from there; left out: nsp_head, pooler; the cross-attention of the decoder is fresh"]
    jax.tree.map(np.testing.assert_array_equal, state.params["mlm_head"], PARAMS["mlm_head"])
    taken = stack_layers(PARAMS) if layers == "scanned" else PARAMS
    for name in ("layers",) if layers == "scanned" else ("layer_0", "layer_1"):
        given = taken["encoder"][name]
        found, decoder = state.params["encoder"][name], state.params["encoder"]["decoder"][name]
        jax.tree.map(np.testing.assert_array_equal, found, given)
        jax.tree.map(np.testing.assert_array_equal, {part: decoder[part] for part in given}, given)
        crossed = fresh["encoder"]["decoder"][name]["cross_attention"]
        jax.tree.map(np.testing.assert_array_equal, decoder["cross_attention"], crossed)


def test_an_encoder_with_entities_begins_as_a_bert() -> None:
    """All parameters of the BERT are taken, and the parameters of entities are fresh."""
    initial, notes = TrainedModel("there", PARAMS, CONFIG, OLD), list[str]()
    keys = {"encoder": "ernie_thu", "size": "base", "num_token_layers": 1, "entity_size": 8, "dropout_rate": 0.2}
    config: Any = choose_model(Architecture.of(keys, 100), OLD.size, initial)
    assert (config.num_layers, config.hidden_size, config.entity_size, config.dropout_rate) == (2, 32, 8, 0.2)
    fresh = jax.tree.map(np.asarray, fresh_params(config))
    state = start_from(initial, config, OLD, notes.append)(state_of({**fresh, "entity_head": {}}))
    assert notes == ["starting from there; fresh: entity_head; the parameters of entities are fresh"]

    def check(found: Any, given: Any, new: Any) -> None:
        assert found.keys() == new.keys() >= given.keys()
        for name, tree in found.items():
            if isinstance(tree, dict) and name in given:
                check(tree, given[name], new[name])
            else:
                jax.tree.map(np.testing.assert_array_equal, tree, given.get(name, new[name]))

    check(state.params["encoder"], PARAMS["encoder"], fresh["encoder"])
    assert {"entity_input", "entity_output"} < state.params["encoder"]["layer_1"]["mlp"].keys()


def test_scanned_layers_and_a_larger_vocabulary_together() -> None:
    new = wordpiece((*OLD.vocab, "input"))
    model = dataclasses.replace(CONFIG, layers="scanned", vocab_size=new.size)
    notes: list[str] = []
    start = start_from(TrainedModel("there", PARAMS, CONFIG, OLD), model, new, notes.append)
    fresh = stack_layers(random_params(dataclasses.replace(CONFIG, vocab_size=new.size), seed=3))
    expected = stack_layers(with_vocabulary_rows(PARAMS, OLD, new)[0])
    jax.tree.map(np.testing.assert_array_equal, start(state_of(fresh)).params, expected)
    assert notes[0].startswith("vocabulary: 1 new pieces")


def test_padding_of_the_embeddings_is_left_behind() -> None:
    padded = dataclasses.replace(CONFIG, vocab_size=16)
    initial = TrainedModel("there", random_params(padded, seed=3), padded, OLD)
    state = start_from(initial, CONFIG, OLD, lambda _: None)(state_of(PARAMS))
    np.testing.assert_array_equal(words(state.params), words(initial.params)[: OLD.size])


def test_the_seed_of_a_run_that_goes_on() -> None:
    def of(parent: RunKey | None, seed: int = 3) -> tuple[int, dict[str, str]]:
        return continued_seed(seed, TrainedModel("there", {}, CONFIG, OLD, run=parent), "pretraining")

    assert continued_seed(3, None, "pretraining") == of(None) == of(RunKey("fine-tuning", "a")) == (3, {})
    assert of(RunKey("pretraining", "a"))[1] == {"parent_key": "a"}
    seeds = [of(RunKey("pretraining", key), seed)[0] for key in "ab" for seed in (3, 4)]
    assert seeds[0] == 2113198376  # it must not change: runs that were begun with it go on
    assert len({3, 4, *seeds}) == 6
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_both_kinds_of_folder_are_read(tmp_path: Path) -> None:
    folder, workdir = tmp_path / "model", tmp_path / "me@home" / "run"  # an @ of a path is no step
    export_model(TrainedModel("", PARAMS, CONFIG, OLD), folder, "card")
    import_into_workdir(str(folder), str(workdir))
    found = [load(str(source)) for source in (folder, workdir, f"{workdir}@0")]
    for initial in found:
        jax.tree.map(np.testing.assert_array_equal, initial.params, PARAMS)
        assert (initial.config, initial.tokenizer.sha256) == (CONFIG, OLD.sha256)
    assert [(initial.workdir, initial.step) for initial in found] == [(None, 0), (str(workdir), 0), (str(workdir), 0)]
    assert [initial.run for initial in found] == [None] * 3  # an imported model has seen no rows of ours
    with pytest.raises(UserError, match="has only steps 0; choose one of them"):
        load(f"{workdir}@5")
    for number in ("last", "٨٠", "²", "1_0", ""):
        with pytest.raises(UserError, match=f"run@{number}: after @ comes a step number, in the digits 0 to 9"):
            load(f"{workdir}@{number}")


@pytest.mark.parametrize("source", ["nowhere", "nowhere@3", "."])
def test_a_folder_of_neither_kind_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="neither a Hugging Face directory .* nor a workdir"):
        load(source)
