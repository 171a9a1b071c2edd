"""Models whose context is stretched by YaRN give mlx-lm's logits: yarn.py MODEL_LOGITS.

The tiny models of tests/oracles with other rotary parameters in their configuration; but for glm_moe_dsa, whose layers share
choices, which mlx-lm's do not.
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile

import mlx.core as mx
import numpy as np
from mlx_model import ORACLES, tiny_model

TOLERANCE = 2e-4
TOKENS = 200  # three times the original context
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
DEEPSEEK = YARN | {"beta_fast": 32.0, "beta_slow": 1.0}
TRIALS = {
    "llama": [YARN, YARN | {"beta_fast": 4, "beta_slow": 0.25}],
    "qwen3_next": [YARN],
    "deepseek_v3": [
        YARN,
        DEEPSEEK | {"mscale": 1.0, "mscale_all_dim": 1.0},
        DEEPSEEK | {"factor": 40.0, "mscale": 0.707, "mscale_all_dim": 0.5},
    ],
}


def with_parameters(name, parameters, path):
    """The model's file with these rotary parameters."""
    data = (ORACLES / f"{name}.safetensors").read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    config = json.loads(header["__metadata__"]["config"])
    config["rope_parameters"] |= parameters
    header["__metadata__"]["config"] = json.dumps(config)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[end:])


class Ours:
    def __init__(self, program, folder):
        self.program, self.out = program, folder / "logits"

    def logits(self, path, tokens):
        subprocess.run([self.program, str(path), str(self.out), *map(str, tokens)], check=True)
        return np.fromfile(self.out, dtype=np.float32).reshape(len(tokens), -1)


def theirs(name, tokens, parameters=None):
    return np.array(tiny_model(name, parameters)(mx.array([tokens]))[0])


def difference(found, expected):
    return np.abs(found - expected).max() / expected.std()


def main(program):
    source = random.Random(1)
    tokens = [source.randrange(300) for _ in range(TOKENS)]
    with tempfile.TemporaryDirectory() as folder:
        ours, path = Ours(program, pathlib.Path(folder)), pathlib.Path(folder) / "model.safetensors"
        for name, trials in TRIALS.items():
            plain = theirs(name, tokens)
            usual = difference(ours.logits(ORACLES / f"{name}.safetensors", tokens), plain)
            for parameters in trials:
                with_parameters(name, parameters, path)
                expected = theirs(name, tokens, parameters)
                worst = difference(ours.logits(path, tokens), expected)
                stretch = difference(plain, expected)
                print(f"{name} {parameters}: {worst:.2e} off, {usual:.2e} without YaRN; it moves them by {stretch:.2g}")
                assert stretch > 100 * TOLERANCE, "YaRN changes nothing"
                assert worst < max(TOLERANCE, 3 * usual), name


if __name__ == "__main__":
    main(sys.argv[1])
