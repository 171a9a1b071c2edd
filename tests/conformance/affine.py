"""MLX quantizes and dequantizes random numbers to the bits that Cairn's affine encodings have.

affine.py AFFINE_RECORDS [SEED]: all configurations; the seed is printed, and drawn where none is given.
"""

import itertools
import secrets
import subprocess
import sys

import mlx.core as mx
import numpy

ROWS = 96
TYPES = {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}


def random_numbers(random, width):
    """Gaussians of very different sizes, on offsets of theirs, with zeros, constants and outliers among them."""
    sizes = 10.0 ** random.uniform(-4, 2.5, (ROWS, 1))  # within f16 with all that follows
    numbers = random.standard_normal((ROWS, width)) * sizes
    numbers += random.choice([0, 0, 1, -3], (ROWS, 1)) * sizes
    numbers[random.random(numbers.shape) < 0.01] = 0
    numbers[random.random(numbers.shape) < 0.002] *= 30
    numbers[random.integers(ROWS)] = numbers[random.integers(ROWS), 0]
    return numbers.astype(numpy.float32)


def as_bytes(array):
    """The array's own bytes; numpy knows no bf16."""
    if array.dtype == mx.bfloat16:
        array = array.view(mx.uint16)
    return numpy.array(array).tobytes()


def check(program, random, bits, group, type_name, width):
    numbers = mx.array(random_numbers(random, width)).astype(TYPES[type_name])
    codes, scales, biases = mx.quantize(numbers, group_size=group, bits=bits)
    # In f32: MLX rounds the products and sums of narrower types.
    values = mx.dequantize(
        codes, scales.astype(mx.float32), biases.astype(mx.float32), group_size=group, bits=bits
    )
    assert values.dtype == mx.float32
    theirs = [as_bytes(array) for array in (codes, scales, biases, values)]
    ours = subprocess.run(
        [program, f"affine{bits}-g{group}-{type_name}", str(width)],
        input=as_bytes(numbers.astype(mx.float32)),
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    assert len(ours) == sum(map(len, theirs)), (bits, group, type_name, width)
    for name, expected in zip(("codes", "scales", "biases", "values"), theirs):
        assert ours[: len(expected)] == expected, f"{name} of affine{bits}-g{group}-{type_name}, width {width}"
        ours = ours[len(expected) :]


def main():
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else secrets.randbits(32)
    print("seed", seed)
    mx.set_default_device(mx.cpu)
    random = numpy.random.default_rng(seed)
    for bits, group, type_name in itertools.product((2, 3, 4, 5, 6, 8), (32, 64, 128), TYPES):
        for width in (group, 384):
            check(sys.argv[1], random, bits, group, type_name, width)


if __name__ == "__main__":
    main()
