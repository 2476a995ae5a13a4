"""Checkpoints that TensorFlow writes on the spot, read without it. Needs TensorFlow: pip install tensorflow."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="needs tensorflow, which writes the checkpoints")

from bert_jax.interchange.original import import_original
from bert_jax.interchange.tensor_bundle import read_bundle
from tests.interchange.original_checkpoint import FOLDER, values, write

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("default")]


def test_the_stored_files_are_what_tensorflow_reads():
    reader = tf.train.load_checkpoint(str(FOLDER / "bert_model.ckpt"))
    ours = read_bundle(FOLDER / "bert_model.ckpt")
    assert set(ours) == set(reader.get_variable_to_shape_map())
    for name, array in ours.items():
        np.testing.assert_array_equal(array, reader.get_tensor(name))


@pytest.mark.parametrize(
    ("head", "architecture"),
    [
        ("pretraining", "BertForPreTraining"),
        ("classification", "BertForSequenceClassification"),
        ("span_qa", "BertForQuestionAnswering"),
    ],
)
def test_every_head(tmp_path, head, architecture):
    folder = tmp_path / "cased"
    write(folder, head, "model.ckpt-100")
    imported = import_original(folder)
    assert (imported.head.architecture, imported.report.missing) == (architecture, ())
    assert set(imported.report.tensors) == set(values(head))


def test_shards_halves_and_many_names(tmp_path):
    """There are more names than one block of the index holds, several data files, and every type."""
    rng = np.random.default_rng(0)
    arrays = {f"scope_{i // 100}/layer_{i}/kernel": rng.normal(size=(i % 5, 3)) for i in range(700)}
    kinds = ("float32", "float64", "float16", "bfloat16", "int32", "int64")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for i, (name, array) in enumerate(arrays.items()):
            with tf.device(f"/cpu:{0}"):
                tf.compat.v1.get_variable(name, initializer=tf.cast(array, kinds[i % len(kinds)]))
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver(sharded=True).save(session, str(tmp_path / "model"), write_meta_graph=False)
    reader = tf.train.load_checkpoint(str(tmp_path / "model"))
    found = read_bundle(tmp_path / "model")
    assert set(found) == set(arrays)
    for name, array in found.items():
        np.testing.assert_array_equal(array, np.asarray(reader.get_tensor(name)).astype(array.dtype))


def test_slices_are_refused(tmp_path):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        slices = tf.compat.v1.fixed_size_partitioner(2)
        tf.compat.v1.get_variable("table", shape=(4, 2), partitioner=slices)
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, str(tmp_path / "model"), write_meta_graph=False)
    from bert_jax.errors import UserError

    with pytest.raises(UserError, match="table is stored in slices"):
        read_bundle(tmp_path / "model")
