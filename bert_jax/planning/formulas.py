"""Estimates the memory and time of a layout by formulas, to choose which layouts to compile.

The time of a compiled program is predicted by ``timeline`` instead.
"""

from __future__ import annotations

import dataclasses
import math

from bert_jax.models.config import ModelConfig
from bert_jax.training.chips import Chip

_UPDATE_BYTES = 28  # read and written for each float32 parameter by AdamW: parameter, gradient and two moments
_EFFICIENCY = 0.5  # assumed share of the peak rate; it is the same for all layouts, so it does not change their order


@dataclasses.dataclass(frozen=True)
class BatchLayout:
    """How a batch is computed on devices: mesh axes, micro-batches, rematerialisation, and the shape of the batch.

    The batch has ``rows`` of ``length`` positions, each with ``masked`` predicted positions. ``sharded_update`` says
    whether each device along ``data`` and ``fsdp`` together updates only a part of the parameters, ``keeps_scores``
    whether plain attention keeps arrays [L, L] of each head for the backward pass, as no kernel does.
    """

    data: int
    fsdp: int
    tensor: int
    micro_batches: int
    remat: str
    rows: int
    length: int
    masked: int
    sharded_update: bool = False
    keeps_scores: bool = True

    @property
    def rows_at_once(self) -> float:
        """Return the number of rows that a device computes in one micro-batch."""
        return self.rows / (self.data * self.fsdp * self.micro_batches)

    @property
    def parts(self) -> int:
        """Return the number of parts into which the model that the devices compute with is split."""
        return self.tensor if self.sharded_update else self.fsdp * self.tensor


def activation_bytes(model: ModelConfig, layout: BatchLayout) -> float:
    """Return the bytes that the forward pass keeps for the backward pass, on one device.

    A layer keeps 34 L D + 5 H L^2 bytes per row in bfloat16 with dropout (Korthikanti et al. 2022, "Reducing Activation
    Recomputation in Large Transformer Models", equation 1). Compiled programs keep less: dropout masks (2 L D + H L^2)
    and the output of the activation function (8 L D) are computed again inside of other operations. Rematerialisation
    keeps a layer's input (2 L D), and "dots" the outputs of products with weights, 18 L D: 6 for queries, keys and
    values, 8 for the MLP's first layer, and 2 each for attention's output and the MLP's second layer. An attention
    kernel keeps no L^2, but with "dots" its output, 2 L D. float32 takes twice as much.
    """
    d, heads, length = model.hidden_size, model.num_heads, layout.length
    scale = 1 if model.dtype == "bfloat16" else 2
    scores, of_kernel = (4 * heads * length**2, 0) if layout.keeps_scores else (0, 2)
    # What lies between the two products of a layer's half is split over the tensor axis (equation 2).
    kept = {
        "none": length * d * (8 + 16 / layout.tensor) + scores / layout.tensor,
        "dots": length * d * (6 + (14 + of_kernel) / layout.tensor),
        "full": 2.0 * length * d,
    }
    layers = scale * model.num_layers * kept[layout.remat]
    if layout.remat != "none":  # one layer is recomputed at a time
        layers += scale * kept["none"]
    logits = 3 * 4 * layout.masked * model.vocab_size / layout.tensor  # float32: logits, their gradient, one copy
    return layout.rows_at_once * (layers + logits)


def gradient_bytes(model: ModelConfig, parameter_count: int, layout: BatchLayout) -> float:
    """Return the bytes of the gradients on one device.

    There are as many as float32 parameters, twice that with micro-batches. If the update is sharded, one gradient and a
    copy of the parameters have the compute dtype.
    """
    own = parameter_count / layout.parts
    sums = 4 * own if layout.micro_batches > 1 else 0.0
    return sums + (2 * _width(model) * own if layout.sharded_update else 4 * own)


def step_seconds(model: ModelConfig, layout: BatchLayout, chip: Chip, row_flops: float, parameter_count: int) -> float:
    """Return a rough time of a step: computation at ``_EFFICIENCY`` of the peak, then communication over one axis."""
    devices = layout.data * layout.fsdp * layout.tensor
    again = {"none": 1.0, "dots": 1.1, "full": 4 / 3}[layout.remat]  # "full" repeats the forward pass
    width = _width(model)
    compute = layout.rows * row_flops * again / devices / chip.product_flops(model.dtype) / _EFFICIENCY
    bandwidth = chip.axis_bandwidth
    own = width * parameter_count / layout.tensor
    updated = parameter_count / (devices if layout.sharded_update else layout.parts)
    compute += _UPDATE_BYTES * updated / chip.memory_bandwidth
    sent = 0.0
    if layout.sharded_update:  # gradients summed, parameters gathered
        sent += 3 * own
    elif layout.data > 1:  # gradients summed
        sent += 2 * own / layout.fsdp
    if layout.fsdp > 1 and not layout.sharded_update:
        # In each micro-batch parameters are gathered forward and backward, and gradients scattered.
        sent += 3 * own * layout.micro_batches
    if layout.tensor > 1:  # four all-reduces in each layer
        positions = layout.rows_at_once * layout.micro_batches * layout.length
        sent += 8 * width * model.num_layers * positions * model.hidden_size
    return compute + sent / bandwidth + 1e-5 * math.log2(devices + 1) + 2e-5 * layout.micro_batches


def _width(model: ModelConfig) -> int:
    """Return the bytes of a number in the compute dtype."""
    return 2 if model.dtype == "bfloat16" else 4
