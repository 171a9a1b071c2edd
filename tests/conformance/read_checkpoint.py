"""The safetensors package opens Cairn's checkpoints and finds in them what docs/format.md says."""

import json
import os
import subprocess
import sys
import tempfile

import numpy
from safetensors import safe_open


def sample_record(slot, family, plane, row, row_bytes):
    """The bytes of tests/support/sample_checkpoint.h."""
    index = numpy.arange(row_bytes, dtype=numpy.uint32)
    return (numpy.uint32(slot * 101 + family * 41 + plane * 17 + row * 7) + index).astype(numpy.uint8)


def check(path, positions):
    with safe_open(path, "numpy") as file:
        about = json.loads(file.metadata()["cairn"])
        assert about["format"] == 1 and about["length"] == positions, about
        names = set(file.keys())
        assert file.get_tensor("tokens").shape == (positions + 1,)
        names.remove("tokens")
        for s, slot in enumerate(about["slots"]):
            gone = slot["first_kept"]
            stored = [i for i in range(positions) if gone == 0 or i < slot["sinks"] or i >= gone]
            families = [family["name"] for family in slot["families"]]
            for f, family in enumerate(slot["families"]):
                rows = sum(family["begin"] <= i < family["end"] for i in stored)
                is_exact = family["name"] in families[f + 1 :]
                for p, plane in enumerate(family["planes"]):
                    name = f"slot{s}.{family['name']}{'.exact' if is_exact else ''}.{plane['name']}"
                    names.remove(name)
                    tensor = file.get_tensor(name)
                    elements = plane["record_bytes"] // tensor.itemsize
                    assert tensor.shape == (rows, family["heads"], elements), (name, tensor.shape)
                    for row in range(rows):
                        expected = sample_record(s, f, p, row, family["heads"] * plane["record_bytes"])
                        assert (tensor[row].reshape(-1).view(numpy.uint8) == expected).all(), (name, row)
        assert not names, names


def main():
    with tempfile.TemporaryDirectory() as folder:
        for positions in (0, 1, 15, 300):
            path = os.path.join(folder, f"{positions}.cairn")
            subprocess.run([sys.argv[1], path, str(positions)], check=True)
            check(path, positions)


if __name__ == "__main__":
    main()
