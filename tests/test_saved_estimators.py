"""Files of estimators that an earlier version wrote are loaded, predict as they did, and are written again alike."""

import numpy as np
import pytest

import varlen_rnn as vr

pytest.importorskip("sklearn")

from tests.saved_estimators import ALL, FOLDER, predictions_of
from varlen_rnn.sklearn import load

LATER = {"precision": None}  # options that the files' version did not have, with their defaults


@pytest.mark.parametrize("kind", ALL)
def test_a_file_of_an_earlier_version_predicts_as_it_did(kind, tmp_path):
    path = FOLDER / kind.replace(" ", "_")
    model = load(path)
    predictions = vr.load(FOLDER / "predictions")["predictions"][kind]
    found = predictions_of(kind, model)
    assert found.keys() == predictions.keys()
    for name, values in found.items():
        wanted = np.array(predictions[name]["values"], predictions[name]["kind"])
        if wanted.dtype.kind == "f":
            np.testing.assert_allclose(values, wanted, rtol=1e-5, atol=1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(values, wanted, err_msg=name)
    model.save(tmp_path / "again")
    before, after = vr.load(path), vr.load(tmp_path / "again")
    assert before.keys() == after.keys()
    before["params"] = LATER | before["params"]
    for group, content in before.items():
        np.testing.assert_equal(after[group], content, err_msg=group)
