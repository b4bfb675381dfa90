"""Writes the manual pages, one for each command, from what `--help` says: `man.py PROGRAM DIRECTORY`."""

import os
import pathlib
import re
import subprocess
import sys
import textwrap


def page(program, command, version, directory):
    """The page of one command, and those of the commands below it."""
    # Wide enough for its margin on 80 columns.
    environment = {**os.environ, "COLUMNS": "72"}
    text = subprocess.run([program, *command, "--help"], env=environment, check=True, capture_output=True, text=True).stdout
    name = "-".join(["waterwheel", *command])
    about, rest = text.split("\n\n", 1)
    about, _, more = " ".join(about.split()).partition(". ")
    lines = [
        f'.TH "{name.upper()}" "1" "" "waterwheel {version}" "User Commands"',
        ".SH NAME", f"{escaped(name)} \\- {escaped(about.rstrip('.'))}", ".SH DESCRIPTION", ".nf",
    ]
    for line in [*textwrap.wrap(more, 72), "", *rest.splitlines()]:
        if re.fullmatch(r"[A-Z][A-Za-z ]*:", line):
            lines += [".fi", f".SH {escaped(line[:-1].upper())}", ".nf"]
        else:
            lines.append(escaped(line))
    (directory / f"{name}.1").write_text("\n".join([*lines, ".fi", ""]))
    if "<COMMAND>" in text:
        for below in re.findall(r"^  ([a-z]+)  +[A-Z]", text, re.MULTILINE):
            if below != "help":
                page(program, [*command, below], version, directory)


def escaped(line):
    """A line that groff prints as it is."""
    line = line.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + line if line.startswith((".", "'")) else line


def main():
    program, directory = sys.argv[1], pathlib.Path(sys.argv[2])
    version = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
    directory.mkdir(parents=True, exist_ok=True)
    page(program, [], version, directory)


main()
