"""The base class of encoder families: the classes, tensor names and ``config.json`` of one encoder in transformers.

Each family is a file in ``interchange/families``. The file of an encoder of a user's own may hold its family itself.
"""

from __future__ import annotations

import abc
import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import jax
import numpy as np

from bert_jax import configuration
from bert_jax.errors import UserError
from bert_jax.interchange.names import Entry
from bert_jax.models.config import ModelConfig
from bert_jax.models.model import encoder_file, fresh_params
from bert_jax.parts import catalogue

PACKAGE = "interchange.families"
# End of the name of a class with the head of a task -> the parts of our tree that most families have in it.
TASK_CLASSES = {
    "ForSequenceClassification": ("encoder", "pooler", "classifier"),
    "ForTokenClassification": ("encoder", "classifier"),
    "ForQuestionAnswering": ("encoder", "qa_outputs"),
    "ForMultipleChoice": ("encoder", "pooler", "classifier"),
}
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}
# Name of an activation function in config.json -> our name.
THEIR_ACTIVATIONS = {name: ours for ours, name in ACTIVATIONS.items()} | {"gelu_pytorch_tanh": "gelu_tanh"}
# Keys of config.json that are read for every family; ``architectures.py`` reads the keys of the head.
_ENCODER_KEYS = ("model_type", "pad_token_id", "do_lower_case", "is_decoder", "tie_word_embeddings")
_HEAD_KEYS = ("architectures", "id2label", "label2id", "num_labels", "problem_type")
# Keys that transformers, sentence-transformers or a publisher saved and that change no output of an encoder: names and
# versions, how to compute, how to generate text.
_WITHOUT_EFFECT = """
    _name_or_path name name_or_path language transformers_version paddlenlp_version tokenizer_class finetuning_task
    task_specific_params sentence_transformers sbert_ce_default_activation_function _commit_hash _num_labels
    dtype torch_dtype use_cache output_past return_dict output_attentions output_hidden_states output_scores torchscript
    use_bfloat16 xla_device tf_legacy_loss loss_type gradient_checkpointing chunk_size_feed_forward enable_recompute
    _attn_implementation _attn_implementation_autoset attn_implementation tie_encoder_decoder
    cross_attention_hidden_size bos_token_id eos_token_id eos_token_ids sep_token_id cls_token_id mask_token_id
    decoder_start_token_id prefix max_length min_length do_sample early_stopping num_beams num_beam_groups
    diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size bad_words_ids num_return_sequences return_dict_in_generate forced_bos_token_id
    forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
    directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type
""".split()  # noqa: SIM905
_FLAGS = ("is_decoder", "tie_word_embeddings")
_QUANTIZED = ("quantization_config", "compression_config")


class Family(abc.ABC):
    """A kind of encoder in transformers.

    ``interchange/families/<encoder>.py`` defines a subclass named ``Family``. The file of a user's own encoder may
    define a ``Family`` beside its ``Encoder``: its models are then exported as the classes that the family names.

    Class attributes of a family:
      name: the beginning of the family's class names, such as "Bert".
      title: the family's name in a sentence.
      model_type: the ``model_type`` in ``config.json``.
      prefix: the prefix of the encoder's tensors in a model that has a head.
      classes: the end of a class name -> the parts of our tree that a model of the class has.
      endings: the end of a class name in ``classes`` -> the end that the name has in transformers, where they differ.
      pretrained: the heads that pretraining trains. An import reads such a head if the file has all its tensors, even
        if the class that the file names (such as BertForMaskedLM) does not have the head.
      fields: a key of ``config.json`` -> the field of the encoder's ``Config`` that holds the same value.
      defaults: the values of keys that older files leave out.
      fixed: a key of ``config.json`` -> the only value with which our modules compute the same.
      nullable: keys that may be null. If any other key that counts is null, some version of transformers fails, or
        computes something else than with the default.
      others: keys that the family reads elsewhere, or that change no output of its models.
      causal: the end of the name of the class that predicts the next token; "" if the family has no such class.
      padding: for a family whose positions count from after the id of padding, the id if ``config.json`` names none;
        None for other families.
      decoder: the name of the MLM decoder. Its weights are the word embeddings, of which a file may hold a second copy.
      activation: the key of ``config.json`` for the activation function.
      classifier_dropout: the key of ``config.json`` for the dropout rate before the classifier; "" if it is one of
        ``fields``.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    model_type: ClassVar[str]
    prefix: ClassVar[str]
    classes: ClassVar[Mapping[str, tuple[str, ...]]]
    endings: ClassVar[Mapping[str, str]] = {}
    pretrained: ClassVar[tuple[str, ...]] = ("pooler", "mlm_head", "nsp_head")
    fields: ClassVar[Mapping[str, str]]
    defaults: ClassVar[Mapping[str, float]]
    fixed: ClassVar[Mapping[str, Any]] = {
        "position_embedding_type": "absolute",
        "is_encoder_decoder": False,
        "add_cross_attention": False,
        "pruned_heads": {},
    }
    nullable: ClassVar[tuple[str, ...]] = ("classifier_dropout",)
    others: ClassVar[tuple[str, ...]] = ()
    causal: ClassVar[str] = ""
    padding: ClassVar[int | None] = None
    decoder: ClassVar[str]
    activation: ClassVar[str] = "hidden_act"
    classifier_dropout: ClassVar[str] = "classifier_dropout"

    @property
    def encoder(self) -> str:
        """The name of the encoder, which is also the name of the file of this family."""
        return catalogue.name_of(type(self).__module__)

    @property
    def architectures(self) -> dict[str, tuple[str, ...]]:
        """Full name of each transformers class -> the parts of our tree that a model of the class has."""
        return {self.class_name(ending): parts for ending, parts in self.classes.items()}

    def class_name(self, ending: str) -> str:
        """Return the full name of a transformers class, given its end in ``classes``."""
        return f"{self.name}{self.endings.get(ending, ending)}"

    def ending_of(self, architecture: str) -> str:
        """Return the end in ``classes`` of the full name of a transformers class."""
        ending = architecture.removeprefix(self.name)
        return {theirs: ours for ours, theirs in self.endings.items()}.get(ending, ending)

    @abc.abstractmethod
    def map(self, architecture: str, pad_id: int) -> tuple[Entry, ...]:
        """Return an entry for every tensor that a file of the class ``architecture`` may hold."""

    def entries(self, num_layers: int, architecture: str = "", pad_id: int = 0) -> Iterator[Entry]:
        """Yield the entries of ``map``. An entry with ``{i}`` is replaced by one entry per layer."""
        for entry in self.map(architecture, pad_id):
            for i in map(str, range(num_layers) if "{i}" in entry.ours else [0]):
                yield entry._replace(ours=entry.ours.replace("{i}", i), theirs=entry.theirs.replace("{i}", i))

    def shapes(self, config: ModelConfig, num_outputs: int) -> dict[str, Any]:
        """Return a tree with the shape of every array that a model of the family may have.

        ``num_outputs`` is the number of outputs of a classifier.
        """
        tree = _pretrained_shapes(config)
        return {**tree, "classifier": dense_shape(config, num_outputs), "qa_outputs": dense_shape(config, 2)}

    def merged(self, params: Mapping[str, Any], config: Any) -> Mapping[str, Any]:
        """Return the parameters of a model as the classes of the family have them, under the paths of ``map``.

        A user's own encoder may compute a table or a kernel from several parameters; its family returns the result.

        Args:
          params: the unrolled tree: ``encoder`` and a tree for each head.
          config: the encoder's ``Config``.
        """
        del config
        return params

    def current_name(self, name: str) -> str:
        """Return the current name of a tensor, given a name that may be outdated or lack the family's prefix."""
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        of_encoder = (entry.theirs for entry in self.map("", 0) if entry.theirs.startswith(self.prefix))
        modules = {path.removeprefix(self.prefix).partition(".")[0] for path in of_encoder}
        return f"{self.prefix}{name}" if name.partition(".")[0] in modules else name

    def fold(
        self, tensors: dict[str, np.ndarray], theirs: Mapping[str, Any], where: str
    ) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
        """Return the tensors of the file as our modules have them, and lines for the report about the changes.

        Args:
          tensors: the tensors under their current names.
          theirs: the content of ``config.json``.
          where: the folder's name for error messages.
        """
        del theirs, where
        return tensors, ()

    def redundant(self, architecture: str) -> tuple[str, ...]:
        """Return the names of tensors in files of a class that change no output: copies of other tensors, buffers."""
        buffers = (f"{self.prefix}embeddings.{name}_ids" for name in ("position", "token_type"))
        return *buffers, f"{self.decoder}.weight", f"{self.decoder}.bias"

    @property
    def word_embeddings(self) -> str:
        """The name of the table of word embeddings; "" if the family has none."""
        return next((entry.theirs for entry in self.map("", 0) if entry.ours.endswith("/word_embeddings")), "")

    @property
    def decoder_bias(self) -> str:
        """The name of the MLM output bias. Some files store the bias only as ``<decoder>.bias``."""
        return f"{self.decoder.rpartition('.')[0]}.bias"

    def to_config(self, config: Any, pad_id: int) -> dict[str, Any]:
        """Return the fields of ``config.json`` that describe the encoder."""
        return {
            "model_type": self.model_type,
            **{theirs: getattr(config, ours) for theirs, ours in self.fields.items()},
            self.activation: ACTIVATIONS[config.activation],
            "pad_token_id": pad_id,
            "tie_word_embeddings": True,
            "torch_dtype": "float32",
            **({"is_decoder": True} if config.causal else {}),
        }

    def from_config(self, theirs: Mapping[str, Any], where: str, file: str = "config.json") -> ModelConfig:
        """Return our config for a model whose ``config.json`` has the content ``theirs``.

        Args:
          where: the folder's name for error messages.
          file: the file's name for error messages.

        Raises:
          UserError: the model is not of this family, or has a feature that our modules do not have.
        """
        self._check_keys(theirs, f"{where}/{file}")
        activation = str(theirs.get(self.activation, "gelu"))
        if activation not in THEIR_ACTIVATIONS:
            known = ", ".join(THEIR_ACTIVATIONS)
            raise UserError(f"{where}/{file} has {self.activation} {activation!r}; known: {known}")
        missing = [name for name in self.fields if name not in theirs and name not in self.defaults]
        if missing:
            raise UserError(f"{where}/{file} has no {', '.join(missing)}: it is not of the {self.title} family")
        values = {ours: theirs.get(name, self.defaults.get(name)) for name, ours in self.fields.items()}
        values |= {"activation": THEIR_ACTIVATIONS[activation]}
        if theirs.get("is_decoder"):  # then a token sees only the tokens before it, whatever the class
            values |= {"attention": "causal"}
        try:
            return configuration.build(encoder_file(self.encoder).Config, values, "config")  # type: ignore[no-any-return]
        except UserError as error:
            raise UserError(f"{where}/{file} does not describe a model of the {self.title} family: {error}") from error

    def _check_keys(self, theirs: Mapping[str, Any], path: str) -> None:
        """Raise ``UserError`` if a key is unknown, or its value cannot be followed."""
        given = {name: value for name, value in theirs.items() if value is not None}
        for name in (name for name in _QUANTIZED if name in given):
            raise UserError(
                f"{path} has {name}: a quantized model cannot be read; give one with float32, float16 or bfloat16 "
                "weights, or remove the key if these are"
            )
        for name in (name for name in _FLAGS if not isinstance(given.get(name, False), bool)):
            raise UserError(f"{path} has {name} {given[name]!r}; true and false are allowed")
        counting = (*self.fields, self.activation, self.classifier_dropout, *(n for n, v in self.fixed.items() if v))
        for name in (n for n in counting if theirs.get(n, "") is None and n not in self.nullable):
            raise UserError(f"{path} has null as {name}; give the value with which the model was trained")
        for name, allowed in self.fixed.items():
            if (value := given.get(name, allowed)) != allowed:
                raise UserError(
                    f"{path} has {name} {value!r}; of the {self.title} family, only models with {allowed!r} can be read"
                )
        known = {
            *self.fields,
            *self.fixed,
            *self.others,
            self.activation,
            self.classifier_dropout,
            *_ENCODER_KEYS,
            *_HEAD_KEYS,
            *_WITHOUT_EFFECT,
        }
        if unknown := [f"{name} = {str(value)[:40]}" for name, value in given.items() if name not in known]:
            raise UserError(
                f"{path} has keys that are not known for the {self.title} family: {', '.join(unknown)}; remove those "
                "that change no output of the model; if they change any, the model cannot be read"
            )


@functools.cache  # an export reads its own files back, and tracing a deep encoder takes seconds
def _pretrained_shapes(config: ModelConfig) -> dict[str, Any]:
    """Return the shapes of the encoder and the pretraining heads."""
    return jax.tree.map(lambda x: x.shape, dict(jax.eval_shape(lambda: fresh_params(config))))


def dense_shape(config: ModelConfig, num_outputs: int) -> dict[str, Any]:
    """Return the shapes of a head that is one dense layer on vectors of the model."""
    return {"dense": {"kernel": (config.hidden_size, num_outputs), "bias": (num_outputs,)}}


def families() -> dict[str, Family]:
    """Return a dict: name of an encoder -> its family.

    The families of users' own encoders, as far as they are loaded, come first: if two families have the same class, or
    the same ``model_type``, the last reads a model.
    """
    own = {name: file.Family for name, file in catalogue.own_with("Encoder", "Family").items()}
    return {name: kind() for name, kind in own.items() if is_family(kind)} | _of_package()


@functools.cache
def _of_package() -> dict[str, Family]:
    beside, known = (catalogue.parts(package, having="Family") for package in ("models.encoders", PACKAGE))
    files = {name: encoder_file(name) for name in beside} | {name: catalogue.find(PACKAGE, name) for name in known}
    return {name: file.Family() for name, file in files.items()}


def is_family(kind: Any) -> bool:
    """Return whether ``kind`` is the class of a family and defines all methods."""
    return isinstance(kind, type) and issubclass(kind, Family) and not inspect.isabstract(kind)


def is_own(encoder: str) -> bool:
    """Return whether an encoder has no family in this package, so that its file has to hold it."""
    return encoder not in catalogue.parts(PACKAGE, having="Family")


def family_of(encoder: str) -> Family:
    """Return the family of an encoder. Raises ``UserError`` if transformers has no class for the encoder."""
    known = families()
    if encoder not in known:
        raise UserError(
            f"models of the encoder {encoder!r} cannot be exported: transformers has no class for it; models of "
            f"{', '.join(known)} can be exported, and an encoder of your own whose file has a Family"
        )
    return known[encoder]


def family_with(architecture: str) -> Family:
    """Return the family that has the class ``architecture``.

    Raises ``UserError`` if no family has the class; the message suggests the nearest name.
    """
    known = {name: family for family in families().values() for name in family.architectures}
    return configuration.choose("architecture", architecture, known)


def family_described(theirs: Mapping[str, Any], where: str) -> Family:
    """Return the family that ``config.json`` names, or BERT's if it names none.

    Args:
      theirs: the content of ``config.json``.
      where: the folder's name for error messages.

    Raises:
      UserError: no family has this ``model_type``.
    """
    by_type = {family.model_type: family for family in families().values()}
    kind = theirs.get("model_type", "bert")
    if not isinstance(kind, str) or kind not in by_type:
        raise UserError(f"{where} is a {kind!r} model; readable model types: {', '.join(sorted(by_type))}")
    return by_type[kind]
