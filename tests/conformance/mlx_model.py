"""The tiny models of tests/oracles as models of mlx-lm."""

import json
import pathlib
import tempfile

import mlx.core as mx
from mlx_lm.utils import load_model

ORACLES = pathlib.Path(__file__).parent.parent / "oracles"


def split_experts(weights):
    """transformers 5 keeps the experts of a layer in one tensor, mlx-lm reads one per expert."""
    split = {}
    for name, tensor in weights.items():
        layer, _, part = name.rpartition(".")
        if not layer.endswith(".experts") or part not in ("gate_up_proj", "down_proj"):
            split[name] = tensor
            continue
        for expert in range(tensor.shape[0]):
            if part == "down_proj":
                split[f"{layer}.{expert}.down_proj.weight"] = tensor[expert]
            else:
                gate, up = mx.split(tensor[expert], 2)
                split[f"{layer}.{expert}.gate_proj.weight"] = gate
                split[f"{layer}.{expert}.up_proj.weight"] = up
    return split


def tiny_model(name, scaling=None):
    """`scaling`: rotary parameters beside the file's."""
    tensors, metadata = mx.load(str(ORACLES / f"{name}.safetensors"), return_metadata=True)
    config = json.loads(metadata["config"])
    for key, value in config["rope_parameters"].items():  # transformers 5 moved them there
        if key != "rope_type":
            config.setdefault(key, value)
    if scaling is not None:
        config["rope_scaling"] = scaling
    weights = {name: tensor for name, tensor in tensors.items() if not name.startswith("oracle.")}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        (path / "config.json").write_text(json.dumps(config))
        mx.save_safetensors(str(path / "model.safetensors"), split_experts(weights))
        return load_model(path, lazy=False)[0]
