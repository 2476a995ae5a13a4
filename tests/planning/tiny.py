"""A run of one short phase that compiles in a second or two."""

from typing import Any

from bert_jax.planning import topologies
from bert_jax.planning.plan import Machine
from bert_jax.recipes import recipes
from bert_jax.runs.recipe_plan import PretrainingRecipe

SIZES = {"num_layers": 1, "hidden_size": 32, "num_heads": 4, "mlp_dim": 64, "max_length": 32}
VOCABULARY, ROWS, LENGTH = 400, 64, 32


def config(**changes: Any) -> dict[str, Any]:
    """The quickstart with one phase, AdamW and a smaller model; ``changes`` by group, such as ``mesh={"fsdp": 8}``."""
    tree = recipes.load("quickstart").to_dict()
    tree["vocab"]["size"] = VOCABULARY
    tree["optimizer"] = {"name": "adamw", "bias_correction": "standard"}  # two moments, and no products of its own
    tree["model"] = {**SIZES, "dropout_rate": 0.1}
    tree["phases"] = {"phase1": {"num_steps": 1000, "batch_size": ROWS, "max_length": LENGTH}}
    for group, values in changes.items():
        tree[group] = {**tree.get(group, {}), **values}
    return tree


def recipe(**changes: Any) -> PretrainingRecipe:
    return PretrainingRecipe.of(config(**changes))


def machine() -> Machine:
    return Machine.of(topologies.parse("cpu:8"))
