#!/usr/bin/env python3
"""Puts the rows of a run of the benchmarks into a page, as Markdown.

usage: bench_table.py ROWS PAGE MARK     ROWS: what `make bench JSON=1` or a benchmark's --json wrote
       bench_table.py --self-test

Replaces what stands between the lines "<!-- rows: MARK -->" and "<!-- end -->" of the page.
"""
import json
import re
import sys


def short(value):
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def asked(row):
    if not row.get("goal"):
        return ""
    sign = "≥" if row["better"] == "higher" else "≤"
    return f"{sign} {row['goal']:g} [{row['floor']:g}]"


def table(rows):
    lines = ["| row | ratio | min, max | goal [floor] | ms |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        low, high = row.get("spread") or [row["ratio"], row["ratio"]]
        milliseconds = row["detail"].get("ms")
        lines.append(f"| {row['name']} | {short(row['ratio'])} | {short(low)}, {short(high)} | {asked(row)} | "
                     f"{short(milliseconds) if milliseconds is not None else ''} |")
    return "\n".join(lines)


def replaced(page, mark, text):
    between = re.compile(rf"(<!-- rows: {re.escape(mark)} -->\n).*?(<!-- end -->)", re.DOTALL)
    result, count = between.subn(lambda match: match.group(1) + text + "\n" + match.group(2), page)
    if count != 1:
        sys.exit(f"bench_table: the page has {count} places for rows of {mark}, expected 1")
    return result


def self_test():
    row = {"id": "x", "name": "n", "ratio": 0.5, "better": "lower", "goal": 0.6, "floor": 0.7, "spread": [0.4, 0.6],
           "detail": {"ms": 1234.5}}
    assert table([row]).split("\n")[2] == "| n | 0.5 | 0.4, 0.6 | ≤ 0.6 [0.7] | 1,234 |", table([row])
    assert replaced("a\n<!-- rows: m -->\nold\n<!-- end -->\nb", "m", "new") == (
        "a\n<!-- rows: m -->\nnew\n<!-- end -->\nb")
    print("rows become a table")
    return 0


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    if len(arguments) != 3:
        print(__doc__)
        return 2
    rows_path, page_path, mark = arguments
    with open(rows_path, encoding="utf-8") as file:
        rows = json.load(file)
    with open(page_path, encoding="utf-8") as file:
        page = file.read()
    page = replaced(page, mark, table(rows))
    with open(page_path, "w", encoding="utf-8") as file:
        file.write(page)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
