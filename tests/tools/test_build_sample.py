"""The file of the sample is what today's engine computes: run `python -m tools.build_sample`."""

from importlib.resources import files
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from rest_shim.sample import SAMPLE_FILE
from tools.build_sample import build_parts


@pytest.mark.clause("15.6")
@pytest.mark.prove
async def test_the_sample_holds_the_rows_and_bars_of_the_simulated_market(tmp_path: Path) -> None:
    built = await build_parts(tmp_path)
    with np.load(BytesIO(files("rest_shim").joinpath(SAMPLE_FILE).read_bytes())) as stored:
        assert stored.keys() == built.keys()
        for name, values in built.items():
            np.testing.assert_allclose(stored[name], values, rtol=1e-5, err_msg=name)
