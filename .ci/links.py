#!/usr/bin/env python3
"""Checks the links of all Markdown files of the repository: each path exists, and each anchor is a heading of its file."""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!\w+:)([^)\s]*)\)")


def anchors(path):
    """Returns the anchors of a file as GitHub makes them: lower case, without punctuation, with hyphens for spaces."""
    counts = {}
    text = re.sub(r"^(```|~~~).*?^\1", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for title in re.findall(r"^#+ +(.*)$", text, re.MULTILINE):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        slug = re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")
        counts[slug] = counts.get(slug, -1) + 1
        yield f"{slug}-{counts[slug]}" if counts[slug] else slug


files = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
broken = []
for name in files:
    text = CODE.sub("", (ROOT / name).read_text())
    for link in LINK.findall(text):
        path, _, anchor = link.partition("#")
        target = (ROOT / name).parent / path if path else ROOT / name
        if not target.exists():
            broken.append(f"{name}: {link}: there is no such file")
        elif anchor and target.suffix == ".md" and anchor not in set(anchors(target)):
            broken.append(f"{name}: {link}: there is no such heading")
print("\n".join(broken) or f"all links of {len(files)} files lead somewhere")
sys.exit(bool(broken))
