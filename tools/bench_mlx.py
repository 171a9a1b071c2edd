#!/usr/bin/env python3
"""Encoding and decoding affine records against MLX's quantize and dequantize on this processor.

usage: bench_mlx.py [--json] [--program PATH] [--pairs N]

Every pair is one run of codec_bench (two threads, 256 MB of random f32) and one of MLX (which uses one thread) over
64 MB; what is compared is f32 bytes per second. Rows look like those of the other benchmarks.
"""
import argparse
import json
import statistics
import subprocess
import time

import mlx.core as mx
import numpy as np

WIDTH, GROUP, BYTES = 128, 64, 64 << 20
BITS = (8, 4)


def ours(program):
    """GB of f32 per second, by row id."""
    answer = subprocess.run([program, "--json", "--pairs", "1", "--filter", f"codec/affine[84]/{WIDTH}"],
                            check=True, capture_output=True, text=True).stdout
    return {row["id"]: row["detail"]["gb_per_s"] for row in json.loads(answer)}


def rate(work):
    start = time.perf_counter()
    mx.eval(work())
    return BYTES / (time.perf_counter() - start) * 1e-9


def rows(program, pairs):
    x = mx.array(np.random.default_rng(1).standard_normal((BYTES // 4 // WIDTH, WIDTH), dtype=np.float32))
    mx.eval(x)
    measured = {}  # row id: [(ours, theirs)]
    for _ in range(pairs):
        rates = ours(program)
        for bits in BITS:
            packed = mx.quantize(x, group_size=GROUP, bits=bits)
            mx.eval(packed)
            theirs = {"encode": rate(lambda: mx.quantize(x, group_size=GROUP, bits=bits)),
                      "decode": rate(lambda: mx.dequantize(*packed, group_size=GROUP, bits=bits))}
            for verb, their_rate in theirs.items():
                pair = (rates[f"codec_{verb}_affine{bits}_d{WIDTH}"], their_rate)
                measured.setdefault((verb, bits), []).append(pair)
    for (verb, bits), pairs_of in measured.items():
        ratios = [theirs / our for our, theirs in pairs_of]
        yield {"id": f"codec_over_mlx_{verb}_affine{bits}",
               "name": f"{verb} affine{bits}, width {WIDTH}: our time / time of MLX", "ratio": statistics.median(ratios),
               "better": "lower", "goal": 0, "floor": 0, "spread": [min(ratios), max(ratios)],
               "detail": {"gb_per_s": statistics.median(our for our, _ in pairs_of),
                          "mlx_gb_per_s": statistics.median(theirs for _, theirs in pairs_of),
                          "mlx": str(mx.__version__)}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--program", default="build/bench/codec_bench")
    parser.add_argument("--pairs", type=int, default=9)
    options = parser.parse_args()
    mx.set_default_device(mx.cpu)
    found = list(rows(options.program, options.pairs))
    if options.json:
        print(json.dumps(found, indent=1))
        return
    for row in found:
        detail = " ".join(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
                          for name, value in row["detail"].items())
        print(f"{row['id']:<44} {row['ratio']:>7.3f} [{row['spread'][0]:.3f}, {row['spread'][1]:.3f}] "
              f"goal 0 floor 0 | {detail}")


if __name__ == "__main__":
    main()
