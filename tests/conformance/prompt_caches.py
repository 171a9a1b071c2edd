"""cairn convert reads mlx-lm's prompt caches and writes them so that mlx-lm goes on from them.

prompt_caches.py CAIRN [SEED]: files of mlx-lm with the logits that follow them, and caches that are filled with random
numbers here; the seed is printed, and drawn where none is given.
"""

import json
import pathlib
import secrets
import subprocess
import sys
import tempfile

import mlx.core as mx
from mlx_lm.models.cache import (
    ArraysCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    load_prompt_cache,
    save_prompt_cache,
)
from mlx_model import ORACLES, tiny_model

TOLERANCE = 1e-4
KINDS = {
    "llama.plain": {"attention"},
    "llama.affine8": {"attention"},
    "llama.affine4": {"attention"},
    "llama.window16": {"window"},
    "llama.window16keep4": {"window"},
    "gemma3.plain": {"window", "attention"},
    "qwen3_next.plain": {"recurrent", "attention"},
    "deepseek_v3.plain": {"latent"},
    "glm_moe_dsa.plain": {"latent"},
}


class Cairn:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder

    def run(self, *arguments):
        ran = subprocess.run([self.program, *map(str, arguments)], capture_output=True, text=True)
        assert ran.returncode == 0, (arguments, ran.stderr)
        return ran.stdout, ran.stderr

    def there_and_back(self, path):
        """The prompt cache as it comes back from a checkpoint, and what the checkpoint says about itself."""
        checkpoint, back = self.folder / f"{path.name}.cairn", self.folder / f"back-{path.name}"
        for made in (checkpoint, back):
            made.unlink(missing_ok=True)
        _, warnings = self.run("convert", path, checkpoint)
        assert not warnings, warnings
        self.run("verify", checkpoint)
        _, warnings = self.run("convert", checkpoint, back, "--to", "mlx-lm")
        assert not warnings, warnings
        about, _ = self.run("inspect", checkpoint, "--json")
        return back, json.loads(about)


def live(cache):
    """The arrays of a cache as far as they hold positions, in the order of time."""
    if hasattr(cache, "caches"):
        return [array for member in cache.caches for array in live(member)]
    if isinstance(cache, ArraysCache):
        return cache.cache
    if isinstance(cache, RotatingKVCache):
        return [cache._temporal_order(cache.keys), cache._temporal_order(cache.values)]
    keys, values = cache.keys_and_values()
    return [*keys, *values] if isinstance(keys, (list, tuple)) else [keys, values]


def numbers(cache):
    names = ("offset", "keep", "max_size", "group_size", "bits", "left_padding", "lengths")
    return {name: getattr(cache, name, None) for name in names}


def expect_equal(ours, theirs, where, same_types=True):
    assert len(ours) == len(theirs), where
    for i, (a, b) in enumerate(zip(ours, theirs)):
        assert type(a) is type(b) and numbers(a) == numbers(b), (where, i, numbers(a), numbers(b))
        for x, y in zip(live(a), live(b), strict=True):
            assert x.shape == y.shape and (x.dtype == y.dtype or not same_types), (where, i, x.shape, y.shape)
            assert mx.array_equal(x, y), (where, i)


def check_logits(name, path, model):
    oracle = mx.load(str(ORACLES / "mlx_lm" / f"{name}.logits.safetensors"))
    cache = load_prompt_cache(str(path))
    for token, expected in zip(oracle["tokens"], oracle["logits"], strict=True):
        logits = model(token.reshape(1, 1), cache=cache)[0, -1]
        worst = mx.abs(logits - expected).max().item()
        assert worst < TOLERANCE, (name, worst)


def check_files(cairn):
    files = sorted((ORACLES / "mlx_lm").glob("*.cache.safetensors"))
    assert {file.name.removesuffix(".cache.safetensors") for file in files} == set(KINDS)
    models = {}
    for file in files:
        name = file.name.removesuffix(".cache.safetensors")
        theirs, metadata = load_prompt_cache(str(file), return_metadata=True)
        back, about = cairn.there_and_back(file)
        ours, our_metadata = load_prompt_cache(str(back), return_metadata=True)
        expect_equal(ours, theirs, name)
        assert our_metadata == metadata, name
        assert {slot["kind"] for slot in about["slots"]} == KINDS[name], name
        assert about["positions"] == about["tokens"] == 40 and about["is_derived"], name
        if (ORACLES / "mlx_lm" / f"{name}.logits.safetensors").exists():
            model = name.partition(".")[0]
            if model not in models:
                models[model] = tiny_model(model)
            check_logits(name, back, models[model])


def random_caches():
    """Caches of every class, type and configuration, and how many positions go in at a time."""
    for dtype in (mx.float32, mx.float16, mx.bfloat16):
        yield [KVCache(), KVCache()], (64, 32), dtype, [40, 1, 1]
        yield [KVCache(), RotatingKVCache(24, 4)], (32, 32), dtype, [7, 1, 1, 9]
        for keep in (0, 4):
            yield [RotatingKVCache(16, keep)], (32, 64), dtype, [1] * 50
            yield [RotatingKVCache(16, keep)], (32, 64), dtype, [10, 1, 1]
            yield [RotatingKVCache(16, keep)], (32, 64), dtype, [30, 1, 5, 1, 1]
            yield [RotatingKVCache(300, keep)], (32, 32), dtype, [1] * 70
        for bits in (2, 3, 4, 5, 6, 8):
            for group in (32, 64, 128):
                yield [QuantizedKVCache(group, bits)], (128, 128), dtype, [33]


def fill(caches, widths, dtype, steps):
    for step in steps:
        for cache in caches:
            cache.update_and_fetch(*(mx.random.normal((1, 2, step, width)).astype(dtype) for width in widths))


def initialized(cache):
    """mlx-lm makes room for codes as if a word held whole ones only; MLX packs 3, 5 and 6 bits without a gap."""
    if isinstance(cache, QuantizedKVCache) and 32 % cache.bits:
        empty = mx.zeros((1, 2, 256, 128))
        cache.keys = list(mx.quantize(empty.astype(mx.float32), group_size=cache.group_size, bits=cache.bits))
        cache.values = list(mx.quantize(empty.astype(mx.float32), group_size=cache.group_size, bits=cache.bits))
    return cache


def check_random(cairn, seed):
    for i, (caches, widths, dtype, steps) in enumerate(random_caches()):
        mx.random.seed(seed + i)
        fill([initialized(cache) for cache in caches], widths, dtype, steps)
        path = cairn.folder / "random.safetensors"
        save_prompt_cache(str(path), caches)
        back, _ = cairn.there_and_back(path)
        where = (seed + i, type(caches[0]).__name__, str(dtype), steps)
        ours, theirs = load_prompt_cache(str(back)), load_prompt_cache(str(path))
        expect_equal(ours, theirs, where)
        for more in ([1], [3], [1] * 20):  # and both go on alike
            for loaded in (ours, theirs):
                mx.random.seed(seed)
                fill(loaded, widths, dtype, more)
            expect_equal(ours, theirs, (*where, "then", more))


def main():
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else secrets.randbits(32)
    print("seed", seed)
    mx.set_default_device(mx.cpu)
    with tempfile.TemporaryDirectory() as folder:
        cairn = Cairn(sys.argv[1], pathlib.Path(folder))
        check_files(cairn)
        check_random(cairn, seed)


if __name__ == "__main__":
    main()
