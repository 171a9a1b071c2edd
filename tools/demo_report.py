"""Tells in words what `cairn run --json` said; tools/demo.sh calls it. Exits 1 when two answers that must be equal are not."""
import json
import sys
import textwrap


def result(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def seconds(milliseconds):
    return f"{milliseconds / 1000:.2f} s" if milliseconds >= 100 else f"{milliseconds:.0f} ms"


def megabytes(byte_count):
    return f"{byte_count / 1e6:,.1f} MB"


def read(path, wall_us):
    said = result(path)
    print(f"  {said['prompt_tokens']:,} tokens read in {seconds(int(wall_us) / 1000)}, "
          f"{megabytes(said['state_bytes'])} of state saved")


def answer(path):
    said = result(path)
    print(f"  first word after {seconds(said['ttft_ms'])}: {said['reused']:,} tokens remembered, "
          f"{said['computed']:,} computed; then {said['decode_tokens_per_s']:.0f} tokens/s")
    for line in textwrap.wrap(" ".join(said["text"].split()), width=92):
        print(f"  | {line}")


def compare(resumed_path, cold_path):
    resumed, cold = result(resumed_path), result(cold_path)
    ratio = resumed["ttft_ms"] / cold["ttft_ms"]
    same = resumed["tokens"] == cold["tokens"] and resumed["text"] == cold["text"]
    print(f"  first word, from the start of the process: {seconds(resumed['ttft_ms'])} with the file, "
          f"{seconds(cold['ttft_ms'])} without")
    print(f"  ratio {ratio:.4f}, {1 / ratio:.1f} times sooner")
    if resumed["reused"] == 0:
        print("  FAIL  the second process took nothing from the file")
    elif not same:
        at = next((i for i, pair in enumerate(zip(resumed["tokens"], cold["tokens"])) if pair[0] != pair[1]),
                  min(len(resumed["tokens"]), len(cold["tokens"])))
        print(f"  FAIL  the answers differ from token {at} on")
    else:
        print(f"  PASS  the same words: all {len(cold['tokens'])} tokens are identical")
    return 0 if same and resumed["reused"] > 0 else 1


if __name__ == "__main__":
    verb, *arguments = sys.argv[1:]
    sys.exit({"read": read, "answer": answer, "compare": compare}[verb](*arguments) or 0)
