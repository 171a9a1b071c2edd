#!/usr/bin/env python3
"""Compares two runs of the benchmarks row by row.

usage: bench_compare.py OLD NEW        files that `make bench JSON=1` or a benchmark's --json wrote
       bench_compare.py --self-test

A row is {"id", "name", "ratio", "better": "higher"|"lower", "goal", "floor", "spread": [min, max], "detail"}; goal and
floor may be null. Noise is the wider of the two spreads as a share of its ratio; a change within it says nothing.
"""
import json
import sys


def noise(row):
    low, high = row.get("spread") or [row["ratio"], row["ratio"]]
    return abs(high - low) / abs(row["ratio"]) if row["ratio"] else 0.0


def verdict(old, new):
    if not old["ratio"]:
        return "no old value"
    change = new["ratio"] / old["ratio"] - 1
    if abs(change) <= max(noise(old), noise(new)):
        return "within noise"
    return "better" if (change > 0) == (new["better"] == "higher") else "worse"


def standing(row):
    """Where the new ratio stands against what was asked of it."""
    def met(limit):
        return row["ratio"] >= limit if row["better"] == "higher" else row["ratio"] <= limit
    if row.get("floor") is not None and not met(row["floor"]):
        return "below floor"
    if row.get("goal") is None:
        return ""
    return "goal met" if met(row["goal"]) else "goal missed"


def table(old_rows, new_rows):
    old_by_id = {row["id"]: row for row in old_rows}
    new_by_id = {row["id"]: row for row in new_rows}
    lines = [("id", "old", "new", "new/old", "noise", "change", "goal")]
    for identifier in list(old_by_id) + [i for i in new_by_id if i not in old_by_id]:
        old, new = old_by_id.get(identifier), new_by_id.get(identifier)
        if old is None or new is None:
            lines.append((identifier, f"{old['ratio']:.4g}" if old else "-", f"{new['ratio']:.4g}" if new else "-",
                          "-", "-", "gone" if old else "new", standing(new) if new else ""))
            continue
        quotient = f"{new['ratio'] / old['ratio']:.3f}" if old["ratio"] else "-"
        lines.append((identifier, f"{old['ratio']:.4g}", f"{new['ratio']:.4g}", quotient,
                      f"{100 * max(noise(old), noise(new)):.1f} %", verdict(old, new), standing(new)))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(text.ljust(width) if column in (0, 5, 6) else text.rjust(width)
                               for column, (text, width) in enumerate(zip(line, widths))).rstrip() for line in lines)


def self_test():
    def row(ratio, spread, better="higher", goal=None, floor=None):
        return {"id": "x", "name": "x", "ratio": ratio, "better": better, "goal": goal, "floor": floor,
                "spread": spread, "detail": {}}
    assert verdict(row(1.0, [0.95, 1.05]), row(1.08, [1.05, 1.1])) == "within noise"
    assert verdict(row(1.0, [0.99, 1.01]), row(1.08, [1.07, 1.09])) == "better"
    assert verdict(row(1.0, [0.99, 1.01], "lower"), row(1.08, [1.07, 1.09], "lower")) == "worse"
    assert standing(row(0.5, [0.5, 0.5], goal=0.8, floor=0.6)) == "below floor"
    assert standing(row(0.7, [0.7, 0.7], goal=0.8, floor=0.6)) == "goal missed"
    assert standing(row(0.009, [0.009, 0.009], "lower", goal=0.01)) == "goal met"
    lines = table([row(1.0, [1.0, 1.0])], [row(2.0, [2.0, 2.0]), {**row(3.0, None), "id": "y"}]).split("\n")
    assert len(lines) == 3 and "2.000" in lines[1] and lines[2].split()[-1] == "new", lines
    print("noise and change are told apart")
    return 0


def read_rows(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    if len(arguments) != 2:
        print(__doc__)
        return 2
    try:
        old_rows, new_rows = (read_rows(path) for path in arguments)
    except (OSError, ValueError) as error:
        print(f"bench_compare: {error}", file=sys.stderr)
        return 2
    print(table(old_rows, new_rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
