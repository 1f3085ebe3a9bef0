#!/usr/bin/env python3
"""The tables of docs/FORMATS.md section 11 from bench/results/accuracy.json; never edited by hand.

usage: tables.py            write them into the page
       tables.py --check    fail if the page has others

A table stands between the lines `<!-- table NAME -->` and `<!-- end -->`. Errors are in percent, with three digits
where sums of micro-batches are given (two behind the point below 10), else two behind the point."""

import json
import os
import re
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PAGE = os.path.join(ROOT, "docs", "FORMATS.md")
RESULT = os.path.join(ROOT, "bench", "results", "accuracy.json")
COLUMNS = [("INT4", "int4"), ("INT5", "int5"), ("INT6", "int6"), ("INT8", "int8"), ("CODE4", "code4"),
           ("INT4 SR", "int4_sr"), ("CODE4 SR", "code4_sr"), ("fit", "fit")]


def table(head, lines):
    return "".join("| " + " | ".join(line) + " |\n" for line in [head, ["---"] * len(head)] + lines)


def short(percent):
    return f"{percent:.2f}" if percent < 9.995 else f"{percent:.1f}"


def sums(rows):
    head = ["case", "format", "G=1", "2", "4", "8", "16", "32", "64", "bias at 64"]
    lines = []
    for row in rows:
        way = f"{row['format'].upper()} {row['rounding']}" + (f", bf16 × {row['staged']}" if row["staged"] > 1 else "")
        lines.append([row["case"], way] + [short(e) for e in row["error_percent"]] + [f"{row['bias_percent']:+.2f}"])
    return table(head, lines)


def activations(first, rows, name):
    return table([first] + [title for title, _ in COLUMNS],
                 [[name(row["case"])] + [f"{row['error_percent'][key]:.2f}" for _, key in COLUMNS] for row in rows])


def tables():
    with open(RESULT, encoding="utf-8") as file:
        rows = json.load(file)["rows"]
    of = {what: [row for row in rows if row["what"] == what] for what in ("accumulate", "synthetic", "dump")}
    if not all(of.values()):
        sys.exit("bench/results/accuracy.json lacks rows: run bench/accuracy with --dumps, then tools/claims.py accuracy")
    return {"sums": sums(of["accumulate"]), "synthetic": activations("data", of["synthetic"], str),
            "dump": activations("role", of["dump"], lambda name: f"`{name}`")}


def fill(page):
    made = tables()
    pattern = re.compile(r"(<!-- table (\w+) -->\n\n)(.*?)(\n<!-- end -->\n)", re.S)
    names = [match.group(2) for match in pattern.finditer(page)]
    if sorted(names) != sorted(made):
        sys.exit(f"docs/FORMATS.md has the tables {names}, not {sorted(made)}")
    return pattern.sub(lambda match: match.group(1) + made[match.group(2)] + match.group(4), page)


def main():
    with open(PAGE, encoding="utf-8") as file:
        page = file.read()
    filled = fill(page)
    if sys.argv[1:] == ["--check"]:
        if filled != page:
            sys.exit("docs/FORMATS.md section 11 is not what bench/results/accuracy.json gives: run tools/tables.py")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write(filled)


if __name__ == "__main__":
    main()
