"""Write a larger model that begins with the weights of a smaller one, tiled, for --init of a pretraining."""

from __future__ import annotations

import argparse

from bert_jax.cli.flags import add_trust
from bert_jax.storage import files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--init", required=True, metavar="MODEL", help="a Hugging Face directory, a run, or WORKDIR@step")
    add("--size", required=True, metavar="NAME", help="a size of the model's encoder, such as large")
    add("--output", required=True, help="the new folder to write")
    add_trust(parser)


def run(arguments: argparse.Namespace) -> None:
    from bert_jax.interchange.card import model_card
    from bert_jax.interchange.hugging_face import export_model, exported_vectors, licence_of
    from bert_jax.interchange.loading import load
    from bert_jax.resizing.growing import grown, layers_of

    a = arguments
    files.check_new(a.output)
    model = load(a.init, flag="--init=")
    larger = grown(model, a.size)
    parent = {"source": model.source, "licence": licence_of(model.workdir or model.source)}
    card = model_card(larger, {}, None, exported_vectors(larger) is not None, parent)
    report = export_model(larger, a.output, card)
    left = ", ".join(sorted(model.params.keys() - larger.params.keys()))
    begins = " ".join(map(str, layers_of(model.config.num_layers, larger.config.num_layers)))
    print(f"{report.line}{left and f'; left out: {left}'}")
    print(f"its layers begin as these of {model.source}: {begins}")
