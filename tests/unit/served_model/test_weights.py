"""The tensors of a model folder, from the headers of its files and in pieces."""

import json
from pathlib import Path

import numpy as np
import pytest

from rl_agent.errors import PublishError
from rl_agent.served_model import weights
from rl_agent.served_model.weights import (
    INDEX,
    first_not_finite,
    parameters,
    read_tensors,
    same_values,
    size_bytes,
)
from tests.unit.safetensors_files import ROWS, write_model


def put(folder: Path, header: object, content: bytes = b"") -> Path:
    """A folder with one file that has this header."""
    folder.mkdir(exist_ok=True)
    written = header if isinstance(header, bytes) else json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(written).to_bytes(8, "little") + written + content)
    return folder


def test_type_shape_and_place_of_each_tensor_are_read_without_its_bytes(tmp_path):
    tensors = read_tensors(write_model(tmp_path / "model"))
    assert {name: (t.dtype, t.shape, t.end - t.start) for name, t in tensors.items()} == {
        "model.embed_tokens.weight": ("F32", (ROWS, 8), ROWS * 32),
        "model.norm.weight": ("F32", (8,), 32),
        "lm_head.weight": ("F32", (ROWS, 8), ROWS * 32),
    }
    assert (parameters(tensors), size_bytes(tensors)) == (16 * ROWS + 8, 64 * ROWS + 32)


def test_with_an_index_only_the_files_that_it_names_count(tmp_path):
    folder = write_model(tmp_path)
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    write_model(folder)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    assert {tensor.file.name for tensor in read_tensors(folder).values()} == {"model-1.safetensors"}


CUT = {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}


@pytest.mark.parametrize(
    ("header", "content", "message"),
    [
        (CUT, b"7 bytes", "is cut short: "),
        (b"{", b"", "is not a readable safetensors file"),
        (b"\xff\xfe", b"", "is not a readable safetensors file"),
    ],
)
def test_a_file_that_is_cut_or_another_is_refused_by_name(tmp_path, header, content, message):
    with pytest.raises(PublishError, match=rf"model\.safetensors: {message}"):
        read_tensors(put(tmp_path, header, content))


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, (99).to_bytes(8, "little") + b"{}"])
def test_a_header_that_ends_behind_its_file_is_refused(tmp_path, content):
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(PublishError, match=r"is cut short in its header|is not a readable"):
        read_tensors(tmp_path)


def test_a_folder_without_a_file_or_with_a_broken_index_is_refused(tmp_path):
    with pytest.raises(PublishError, match="holds no safetensors file"):
        read_tensors(tmp_path)
    (tmp_path / INDEX).write_text("{")
    with pytest.raises(PublishError, match="cannot be read"):
        read_tensors(tmp_path)


def test_tensors_are_alike_whose_bytes_type_and_shape_are(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "CHUNK_BYTES", 64)  # several of a tensor
    name = "lm_head.weight"
    tensor, same = (read_tensors(write_model(tmp_path / folder))[name] for folder in ("tensor", "same"))
    other = read_tensors(write_model(tmp_path / "other", value=0.25))[name]
    longer = read_tensors(write_model(tmp_path / "longer", rows=ROWS + 1))[name]
    assert same_values(tensor, same)
    assert not same_values(tensor, other) and not same_values(tensor, longer)


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), None])
def test_finite_is_told_from_the_bits_of_every_format(tmp_path, dtype, bad):
    values = np.array([0.0, -0.0, 1e-30, -1.5, 6e4, 1.0], np.float32)
    if bad is not None:
        values[4] = bad
    numpy_type = {"F64": np.float64, "F32": np.float32, "F16": np.float16}
    raw = (
        (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        if dtype == "BF16"
        else values.astype(numpy_type[dtype]).tobytes()
    )
    header = {"w": {"dtype": dtype, "shape": [6], "data_offsets": [0, len(raw)]}}
    assert first_not_finite(read_tensors(put(tmp_path, header, raw))) == (None if bad is None else "w")
