import hashlib

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.models.entity_table import EntityTable

VECTORS = np.concatenate([np.zeros((1, 4)), np.random.default_rng(0).normal(size=(6, 4))])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_vectors_are_mapped_and_not_read(tmp_path, dtype):
    path = tmp_path / "entities.npy"
    np.save(path, VECTORS.astype(dtype))
    table = EntityTable.load(str(path))
    assert isinstance(table.vectors, np.memmap)
    assert not table.vectors.flags.writeable
    assert (table.size, table.width) == (7, 4)
    assert table.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    np.testing.assert_array_equal(table.vectors, VECTORS.astype(dtype))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b"", "cannot be read"),
        (b"Berlin\t1\n", "cannot be read"),
        (VECTORS, "float64"),
        (VECTORS.astype(np.float32)[0], r"float32 \[4\]"),
        (VECTORS.astype(np.float32)[:, :0], r"float32 \[7, 0\]"),
        (np.zeros((3, 4), np.int32), "int32"),
        (VECTORS.astype(np.float32)[1:], "row 0 is not zeros"),
    ],
)
def test_what_is_no_table_is_refused_in_one_line(tmp_path, content, message):
    path = tmp_path / "entities.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.save(path, content)
    with pytest.raises(UserError, match=message) as caught:
        EntityTable.load(str(path), "config.objective.entities")
    assert str(caught.value).startswith("config.objective.entities is ")
    assert "\n" not in str(caught.value)


def test_a_file_that_was_cut_off_is_refused(tmp_path):
    path = tmp_path / "entities.npy"
    np.save(path, VECTORS.astype(np.float32))
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(UserError, match="cannot be read"):
        EntityTable.load(str(path))


def test_width_and_ids_are_those_of_the_table(tmp_path):
    path = tmp_path / "entities.npy"
    np.save(path, VECTORS.astype(np.float32))
    table = EntityTable.load(str(path))
    table.check_width(4)
    table.check_ids(np.array([[0, 6], [1, 1]], np.uint32), "the text")
    with pytest.raises(UserError, match=r"have 4 numbers, and config.model.entity_size is 100; set it to 4"):
        table.check_width(100)
    with pytest.raises(
        UserError, match=r"^2 of 4 entities \(50.00%\) of the text have no vector.*largest of them is 9"
    ):
        table.check_ids(np.array([0, 7, 9, 9, 1, 6]), "the text")
