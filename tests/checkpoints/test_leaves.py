"""Leaves have names."""

from bert_jax.checkpoints.leaves import listed


def test_a_list_of_names_is_short() -> None:
    assert listed(["a", "b", "c"]) == "a, b, c"
    assert listed(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
