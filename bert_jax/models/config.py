"""The settings that every encoder has, and the settings of a Transformer. Files in ``models.encoders`` add more."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import jax.numpy as jnp

from bert_jax.configuration import ONE, check_fields
from bert_jax.errors import UserError
from bert_jax.models.kernels import choice
from bert_jax.parts import catalogue


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The settings of an encoder that heads, training and features read. Defaults are BERT-base.

    An encoder with Transformer layers has the settings of ``TransformerConfig`` too. The ``Config`` of another encoder,
    such as a file of your own, defines ``num_layers``, ``num_parameters`` and ``products``.

    activation:
      gelu       x * Phi(x) through erf: the release of 2018-10 and Hugging Face "gelu"
      gelu_tanh  its tanh approximation: google-research/bert since 2019-02, Hugging Face "gelu_new"
      relu       max(x, 0)
    dtype: the type of the vectors and of the factors of matrix products. Parameters, attention scores and their
      softmax, the inside of activation functions, layer-norm statistics and logits stay float32. On a CPU the vectors
      of a bfloat16 model are float32 too (``models.products``). If "float64", which needs ``jax_enable_x64`` and is
      meant for numerical comparison, all of these are float64.
    """

    vocab_size: int
    hidden_size: int = 768  # width of the vectors of tokens
    _: dataclasses.KW_ONLY
    max_length: int = 512  # the most positions of a row; learned positions have as many rows
    dropout_rate: float = 0.1  # dropout on embeddings and on what each part of a layer adds
    activation: Literal["gelu", "gelu_tanh", "relu"] = "gelu"  # of the feed-forward part of a layer, and of heads
    layer_norm_eps: float = 1e-12  # added to the variance in layer norms
    initializer_range: float = 0.02  # standard deviation of a normal distribution, before the cut at two deviations
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"

    # The fields that are bases of rotary positions. A run that starts from a model has the bases of its recipe.
    rotary_bases: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        where = "config.model"
        for field in dataclasses.fields(self):
            if most := _MOST.get(field.name):
                check_fields(
                    self, where, f"1 to {most:,} are allowed", field.name, sound=range(1, most + 1).__contains__
                )
        rates = [field.name for field in dataclasses.fields(self) if field.name.endswith("dropout_rate")]
        check_fields(self, where, "0 or more and below 1 is needed", *rates, sound=lambda value: 0 <= value < ONE)
        scales = ("layer_norm_eps", "initializer_range")
        check_fields(self, where, "more than 0 and at most 1 is needed", *scales, sound=lambda value: 0 < value <= 1)

    def check_lengths(self, max_lengths: Mapping[str, int]) -> None:
        """Raise ``UserError`` if a length in ``max_lengths`` (by kind of row) exceeds the model's positions."""
        too_long = [f"{n} ({kind})" for kind, n in max_lengths.items() if n > self.max_length]
        if too_long:
            raise UserError(
                f"max_length of {', '.join(too_long)} exceeds the model's {self.max_length} positions; "
                f"give at most {self.max_length} there, or raise config.model.max_length of a model without --init"
            )

    def check_longer_rows(self, phases: Sequence[tuple[str, int, Mapping[str, Any]]]) -> None:
        """Raise ``UserError`` if rows of a later phase become longer than the model of this phase can learn to read.

        Args:
          phases: of each phase, its path in the recipe, the length of its rows, and the fields that it replaces.
        """

    @property
    def encoder(self) -> str:
        """The name of the encoder, which is also the name of its file in ``models.encoders``."""
        return catalogue.name_of(type(self).__module__)

    @property
    def causal(self) -> bool:
        """Whether a token sees only itself and the tokens to its left."""
        return False

    def reading(self, causal: bool) -> Self | None:
        """Return the config of the same encoder whose ``causal`` is this; None if its ``Config`` cannot say so."""
        if self.causal == causal:
            return self
        if "attention" not in {field.name for field in dataclasses.fields(self)}:
            return None
        return dataclasses.replace(self, attention="causal" if causal else "bidirectional")  # type: ignore[call-arg]

    @property
    def decodes(self) -> bool:
        """Whether the vectors are of a decoder, which reads its tokens left to right and another sequence besides."""
        return False

    @property
    def memory_length(self) -> int:
        """The number of positions before a row that its tokens see (``models.relative``); 0: there is no memory."""
        return 0

    @property
    def num_kept_layers(self) -> int:
        """The number of layers that keep keys and values while the model writes."""
        return 0

    @property
    def embedding_size(self) -> int:
        """E, the width of the table of word embeddings; the same table decodes predictions to tokens."""
        return self.hidden_size

    @property
    def type_vocab_size(self) -> int:
        """The number of kinds of segments that the model tells apart by ``token_type_ids``; 0 if it reads none."""
        return 0

    @property
    def task_type_vocab_size(self) -> int:
        """The number of pretraining tasks that the model tells apart by ``task_type_ids``; 0 if it reads none."""
        return 0

    @property
    def biases(self) -> bool:
        """Whether the dense layers and layer norms of the encoder and of ``LmHead.transform`` have biases."""
        return True

    @property
    def summary(self) -> Literal["first", "last"]:
        """The token of a text whose vector a pooler reads; in a causal model, the last token alone has seen it all."""
        return "last" if self.causal else "first"

    @property
    def classifier_pooling(self) -> Literal["cls", "mean"]:
        """The vector of a text that ``modernbert.Pooler`` gives a classifier: the vector of [CLS], or the mean.

        Features and sentence vectors have another default (``heads.DEFAULT_POOLING``).
        """
        return "cls"

    @property
    def classifier_scale(self) -> float:
        """The initial standard deviation of the kernel of a classifier, in units of ``initializer_range``."""
        return 1.0

    @property
    def classifier_dropout_rate(self) -> float:
        """The dropout rate before a layer that scores pooled vectors, unless the task has a rate."""
        return self.dropout_rate

    @property
    def span_dropout_rate(self) -> float:
        """The dropout rate before the layer that scores each token as an end of an answer."""
        return 0.0

    @property
    def num_layers(self) -> int:
        """The number of layers whose outputs ``Encoding.hidden`` has besides the embeddings."""
        return 0

    @property
    def num_heads(self) -> int:
        """The number of attention heads of a layer."""
        return 0

    @property
    def remat(self) -> Literal["none", "dots", "full"]:
        """What the backward pass recomputes."""
        return "none"

    def plain(self) -> Self:
        """Return the config of the same encoder with unrolled layers and without remat."""
        return self

    @property
    def num_parameters(self) -> int:
        """The number of parameters, without biases, layer norms and heads."""
        return self.vocab_size * self.embedding_size

    def products(self, length: int) -> int:
        """Return the multiply-adds of all matrix products in a forward pass of a row of ``length`` positions.

        Heads are left out. The number serves ``mfu`` and ``bert-jax plan`` alone.
        """
        del length
        return 0

    def train_flops(self, length: int, num_masked: int = 0, num_pooled: int = 0) -> float:
        """Return the FLOPs of the forward and backward pass of a row of ``length`` positions.

        ``num_masked`` of the positions are predicted and ``num_pooled`` are pooled and classified. A multiply-add
        counts as two operations, and the backward pass as twice the forward pass; only matrix products count (Kaplan
        et al. 2020, section 2.1). Padding counts, since the model computes it; recomputation does not count.
        """
        d, e = self.hidden_size, self.embedding_size
        mlm_head = d * e + self.vocab_size * e
        return 6.0 * self.products(length) + 6.0 * (num_masked * mlm_head + num_pooled * (d * d + 2 * d))

    @property
    def compute_dtype(self) -> Any:
        return jnp.dtype(self.dtype)

    @property
    def param_dtype(self) -> Any:
        return jnp.promote_types(self.dtype, jnp.float32)


@dataclasses.dataclass(frozen=True)
class Block:
    """The form of a Transformer layer. The default is BERT's.

    Attributes:
      norm: where the layer norms are: "after" each residual sum, or "before" attention and before the MLP. With
        "before", the encoder normalises what the last layer returns.
      first_norm: whether a norm comes before attention, if they come "before"; if False, attention reads ``x`` itself.
      gated: whether the MLP multiplies its activated half by another half (GeGLU; Shazeer 2020, section 2).
      fused: whether one kernel makes queries, keys and values.
      output_scale: the standard deviation of the initial kernels that project back to x, in units of
        ``initializer_range``.
      rotation: the base of the rotary positions of queries and keys (Su et al. 2021, section 3.2.2); None: no rotation.
      window: the number of positions that a token sees to each side; None: its whole sequence.
      cross: whether the layer reads another sequence, with a third sub-layer between attention and the MLP.
      relative: whether attention reads the distances of tokens (``models.relative``), with biases that all layers
        "share", or with the "own" biases of the layer and a term that says which tokens are of one segment. None:
        attention reads no distances.
      inner_dropout_rate: the dropout rate inside the MLP, after the activation.
    """

    norm: Literal["after", "before"] = "after"
    first_norm: bool = True
    gated: bool = False
    fused: bool = False
    output_scale: float = 1.0
    rotation: float | None = None
    window: int | None = None
    cross: bool = False
    relative: Literal["share", "own"] | None = None
    inner_dropout_rate: float = 0.0


@dataclasses.dataclass(frozen=True)
class TransformerConfig(ModelConfig):
    """The settings of an encoder with the layers of ``models.transformer``.

    layers: "scanned" compiles one layer and loops over parameters stacked on a leading axis; "unrolled" runs faster
      and compiles longer. ``models.transformer`` converts the parameters.
    attention_kernel: what computes attention: "plain" jax or a kernel, which is a file of ``models.kernels``, all with
      the same result but for rounding; "auto" takes a kernel if it is faster than "plain" (``models.kernels.choice``).
    remat: what the backward pass recomputes: "none" nothing, "dots" everything except matrix products with weights and
      what an attention kernel computed, "full" everything inside a layer.
    """

    num_layers: int = 12  # layers of the encoder
    num_heads: int = 12  # attention heads of a layer; they divide hidden_size
    mlp_dim: int = 3072  # width inside the feed-forward part of a layer
    _: dataclasses.KW_ONLY
    attention_dropout_rate: float = 0.1  # dropout on attention probabilities
    layers: Literal["unrolled", "scanned"] = "unrolled"  # unrolled runs faster, scanned compiles faster
    remat: Literal["none", "dots", "full"] = "none"  # recompute in the backward pass, to save memory: full saves most
    attention_kernel: str = "auto"  # what computes attention; all give the same result but for rounding

    def __post_init__(self) -> None:
        super().__post_init__()
        choice.check_name(self.attention_kernel)
        if self.hidden_size % self.num_heads:
            divisors = [n for n in range(1, min(self.hidden_size, _MOST["num_heads"]) + 1) if self.hidden_size % n == 0]
            nearest = min(divisors, key=lambda n: abs(n - self.num_heads))
            raise UserError(
                f"config.model.hidden_size {self.hidden_size} does not divide by num_heads {self.num_heads}; the "
                f"nearest that does is {nearest}"
            )

    @property
    def num_kept_layers(self) -> int:
        return self.num_layers

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def attention_output_dropout_rate(self) -> float:
        """The dropout rate on the output of attention in a layer."""
        return self.dropout_rate

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The form of each layer, in order. Layers of unlike forms are scanned in groups (``models.transformer``)."""
        return (Block(),) * self.num_layers

    @property
    def embedding_projection(self) -> int:
        """The number of entries of the kernel that projects embeddings to the layers' width; 0 if there is none."""
        return 0

    @property
    def shares_layers(self) -> bool:
        """Whether all layers share one layer's parameters."""
        return False

    def plain(self) -> Self:
        return dataclasses.replace(self, layers="unrolled", remat="none")

    @property
    def num_parameters(self) -> int:
        rotary = all(block.rotation is not None for block in self.blocks)
        types = self.type_vocab_size + self.task_type_vocab_size
        rows = self.vocab_size + types + (0 if rotary else self.max_length)
        embeddings = rows * self.embedding_size + self.embedding_projection
        return embeddings + sum(map(self._weights, self.blocks[:1] if self.shares_layers else self.blocks))

    def products(self, length: int) -> int:
        def attention(block: Block) -> int:
            """Return the multiply-adds of a position: the scores, and their product with the values."""
            seen = length if block.window is None else min(length, 2 * block.window + 1)
            return 2 * self.hidden_size * seen

        layers = sum(self._weights(block) + attention(block) for block in self.blocks)
        return length * (self.embedding_projection + layers)

    def _weights(self, block: Block) -> int:
        """Return the number of entries of a layer's kernels: query, key, value, output; MLP in, gate and out."""
        d = self.hidden_size
        return (8 if block.cross else 4) * d * d + (3 if block.gated else 2) * d * self.mlp_dim


# Far above any existing model: a larger value is a mistake that would be noticed only when memory runs out.
_MOST = {
    "vocab_size": 2**26,
    "hidden_size": 2**20,
    "embedding_size": 2**20,
    "num_layers": 2**12,
    "num_decoder_layers": 2**12,
    "num_heads": 2**12,
    "mlp_dim": 2**22,
    "max_length": 2**22,
    "type_vocab_size": 2**16,
}
