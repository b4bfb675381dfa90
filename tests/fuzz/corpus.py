#!/usr/bin/env python3
"""Unpacks the inputs that are kept: `corpus.py TARGET FOLDER` writes each line of corpus.txt with this target, a name and
an input in hexadecimal digits, to a file of that name. `corpus.py TARGET FOLDER --keep FILE...` adds files to the corpus."""

import pathlib
import sys

target, folder, *rest = sys.argv[1:]
corpus = pathlib.Path(__file__).with_name("corpus.txt")
if rest[:1] == ["--keep"]:
    for path in map(pathlib.Path, rest[1:]):
        with corpus.open("a") as kept:
            kept.write(f"{target} {path.name} {path.read_bytes().hex()}\n")
pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
for line in corpus.read_text().splitlines():
    of, name, *digits = line.split(" ")
    if of == target:
        (pathlib.Path(folder) / name).write_bytes(bytes.fromhex("".join(digits)))
