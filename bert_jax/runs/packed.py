"""Checks of ``config.packing="packed"`` in a fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence

from jax.sharding import Mesh

from bert_jax.errors import UserError
from bert_jax.models.config import ModelConfig
from bert_jax.models.model import encoder_file
from bert_jax.parts import catalogue
from bert_jax.recipes.finetuning_settings import FinetuningSettings
from bert_jax.tasks.base import KIND, ExampleTask

_WHERE, _OTHERS = "config.packing is 'packed'", "set it to 'bucketed' or 'none'"


def check_packing(
    settings: FinetuningSettings, tasks: Sequence[type[ExampleTask]], models: Sequence[ModelConfig]
) -> None:
    """Raise ``UserError`` if a task, or a model that reads its rows, does not keep the examples of a row apart."""
    for task in tasks:
        if not task.packs:
            every = catalogue.parts("tasks", having="Task")
            able = ", ".join(name for name in every if catalogue.find("tasks", name, having="Task").Task.packs)
            name = catalogue.display_name(catalogue.name_of(task.__module__))
            raise UserError(f"{_WHERE}, and the task {name} has one example in a row; {_OTHERS} ({able} can be packed)")
    if settings.bilstm_layers:
        raise UserError(f"{_WHERE}, and a BiLSTM reads all of a row; {_OTHERS}, or config.bilstm_layers to 0")
    for model in models:
        reads = encoder_file(model.encoder).Encoder.reads
        if unread := [name for name in ("position_ids", "sequence_ids") if name not in reads]:
            raise UserError(f"{_WHERE}, and the encoder {model.encoder!r} does not read {unread[0]}; {_OTHERS}")


def check_packed_batch(task: ExampleTask, mesh: Mesh, micro_batches: int) -> None:
    """Raise ``UserError`` unless the packed rows of a batch split evenly over devices and micro-batches."""
    source, size = task.packed(0), task.setting.batch_size
    data, fsdp = mesh.shape["data"], mesh.shape["fsdp"]
    shards = data * fsdp * micro_batches
    if (rows := source.rows_of(size)) % shards:
        others = range(shards, 16 * (size + rows + shards), shards)
        able = [other for other in others if source.rows_of(other) % shards == 0]
        nearest = min(able, key=lambda other: abs(other - size), default="none")
        raise UserError(
            f"config.phases.{KIND}.batch_size is {size}, about {rows} packed rows, which do not divide by data "
            f"{data} x fsdp {fsdp} x micro_batches {micro_batches} = {shards}; the nearest size whose rows do is "
            f"{nearest}, or set config.packing to 'bucketed'"
        )
