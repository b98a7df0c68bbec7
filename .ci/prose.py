#!/usr/bin/env python3
"""Checks the prose of comments, docs and messages for constructions that are hard to read.

    .ci/prose.py                 counts per folder; fails above 2.0 hits per 1,000 words in a folder, or 1.0 in all
    .ci/prose.py --list PATH...  prints every hit
    .ci/prose.py --since COMMIT  prints the hits on lines that were added since a commit

A hit is a place to look at. Some correct sentences match, so the limits are above zero."""
import collections
import pathlib
import re
import subprocess
import sys

FOLDER_LIMIT, TOTAL_LIMIT = 2.0, 1.0  # hits per 1,000 words
SMALL = 200  # Folders with fewer words have no limit.

RULES = [
    ("subject: name the thing instead of 'What …' or 'Whoever …'", r"(?:^|[.;:] )(?:What|Who(?:ever)?|Whatever) (?![^.]*\?)"),
    ("subject: name the thing instead of 'what is …'", r"\b(?:what(?:ever)?|whoever) (?:is|was|were|has|had|came|comes|goes|needs|stays|waits) "),
    ("noun: repeat the noun instead of 'that of' or 'the one that'", r"\b(?:that|those) of\b|\bthe ones? that\b|\b[Tt]he same of\b"),
    ("fragment: a comment must stand alone", r"^(?:The same|Those|Of (?:a|an|its|the)|As (?:above|there)|Its|They|What|Who)\b"),
    ("role: name the caller, worker or operator", r"\b(?:[Nn]o|[Ss]ome|[Aa]ny|[Ee]very)body\b"),
    ("state it: 'there is no …'", r"\b(?:is|are) none\b"),
    ("reference: repeat the verb instead of 'so'", r"\b(?<!say )(?<!says )(?<!do )(?<!if )(?<!is )so[.;]"),
    ("possession: name the owner, or use 'own' before the noun", r"\bof (?:its|their) own\b|\bby (?:itself|themselves)\b"),
]
RULES = [(name, re.compile(pattern)) for name, pattern in RULES]

LINE_COMMENT = {"rs": "//", "proto": "//", "go": "//", "ts": "//", "java": "//", "sql": "--", "py": "#", "sh": "#", "toml": "#", "yaml": "#"}
MESSAGES = {"rs", "go", "ts", "java", "py"}
MESSAGE = re.compile(r'"((?:[^"\\]|\\.){24,})"')
GENERATED = re.compile(r"\.pb\.go$|(?:^|/)(?:corpus|howdahv1|node_modules|vendor)/")


def prose(path, line):
    """Yields the prose of a line, and whether it is a comment."""
    kind = path.rsplit(".", 1)[-1]
    text = line.strip()
    if kind == "md":
        yield text, False
    elif kind in LINE_COMMENT and text.startswith(LINE_COMMENT[kind]):
        yield text.lstrip("/!-# "), True
    elif kind in ("ts", "java") and text.startswith(("/*", "*")):
        yield text.lstrip("/* "), True
    elif kind in MESSAGES:
        yield from ((message, False) for message in MESSAGE.findall(text) if message.count(" ") >= 4)


def hits(text, is_comment):
    for name, pattern in RULES:
        if is_comment or not name.startswith("fragment"):
            yield from (name for _ in pattern.finditer(text))


def git(*args):
    return subprocess.run(["git", *args], capture_output=True, text=True, errors="replace", check=True).stdout


def all_lines(paths):
    for path in git("ls-files", "--", *paths).splitlines():
        if path.rsplit(".", 1)[-1] in {*LINE_COMMENT, "md"} and not GENERATED.search(path):
            yield from ((path, n, line) for n, line in enumerate(pathlib.Path(path).read_text(errors="replace").splitlines(), 1))


def added_lines(commit):
    path, number = "", 0
    for line in git("diff", "--unified=0", commit).splitlines():
        if line.startswith("+++ "):
            path = line.removeprefix("+++ b/")
        elif line.startswith("@@"):
            number = int(re.search(r"\+(\d+)", line)[1]) - 1
        elif line.startswith("+") and not GENERATED.search(path):
            yield path, (number := number + 1), line[1:]


def main(option="", *args):
    if option in ("--list", "--since"):
        for path, number, line in all_lines(args) if option == "--list" else added_lines(*args):
            for text, is_comment in prose(path, line):
                print("".join(f"{path}:{number}: {name}: {text[:120]}\n" for name in hits(text, is_comment)), end="")
        return 0
    words, found = collections.Counter(), collections.Counter()
    for path, _, line in all_lines([]):
        folder = "/".join(path.split("/")[:2]) if path.count("/") > 1 else path.split("/")[0]
        for text, is_comment in prose(path, line):
            words[folder] += len(text.split())
            found[folder] += sum(1 for _ in hits(text, is_comment))
    rates = {folder: 1000 * found[folder] / words[folder] for folder in words if words[folder] >= SMALL}
    for folder, rate in sorted(rates.items(), key=lambda item: -item[1]):
        print(f"{folder:32} {words[folder]:7} words {found[folder]:5} hits {rate:6.2f} per 1,000")
    total = 1000 * found.total() / words.total()
    print(f"all: {words.total()} words, {found.total()} hits, {total:.2f} per 1,000")
    above = [folder for folder, rate in rates.items() if rate > FOLDER_LIMIT] + ["all"] * (total > TOTAL_LIMIT)
    if above:
        print(f"above the limit: {', '.join(above)}; `.ci/prose.py --list PATH` shows the hits", file=sys.stderr)
    return len(above) > 0


sys.exit(main(*sys.argv[1:]))
