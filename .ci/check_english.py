# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find habits of English that make readers stumble, in pages, docstrings and comments.

    python .ci/check_english.py --words --max-words 25000 README.md docs tf_fuse cc

Checks Markdown outside of code, Python in docstrings and comments, C++ in comments. Prints
each finding as PATH:LINE and exits with status 1 if there is one. Only the words of Markdown pages
are counted.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

# One to four words of a noun phrase, and none begins another part of the sentence.
_NOUNS = (
    r"(?:(?!(?:to|not|no|let|been|that|which|who|whose|what|and|or|but|as|than|if|when|where|at|by|"
    r"for|in|of|on|it|they|we|you|can|cannot|may|must|will|would|should|is|are|was|were|has|have|"
    r"had|[\w-]+ed)\b)[\w'-]+ ){1,4}(?<!\ba )(?<!\ban )(?<!\bthe )"
)
# (Without those that the project uses as nouns: a call, a pack, a receive, a run.)
_VERB = (
    r"(?:begin|become|carry|choose|compile|compute|decide|do|fetch|forget|gather|get|give|go|hold|"
    r"install|join|keep|know|make|say|see|send|take|tell|wait)\b"
)

# Habit, pattern, what to write instead. In the text that is searched, white space is one space.
RULES = (
    (
        "has X do Y",
        rf"(?:^|\| )Ha(?:s|ve) (?!to\b)\w+|\bhas {_NOUNS}{_VERB}"
        rf"|[.:;] Have {_NOUNS}{_VERB}|\b(?:to|can|may|must|should|will) have {_NOUNS}{_VERB}",
        "name the actor: X does Y",
    ),
    (
        "is no N",
        r"(?<![Tt]here )\b(?:is|are|was|were) no "
        r"(?!longer\b|more\b|less\b|better\b|\w+er than\b)\w+",
        "is not a N",
    ),
    ("is none", r"(?<![Tt]here )\b(?:is|are|was|were) none\b", "is not one; better, name it"),
    (
        "told of",
        r"\b(?:tell|tells|told) of\b|\b(?:is|are|was|were|be|been) told\b",
        "say who reports or sends what to whom",
    ),
    ("of which", r"(?<!regardless )\bof (?:which|whom)\b", "begin a new sentence"),
    (
        "what there is",
        r"\bwhat there (?:is|are|was|were)\b"
        r"|\bthat there (?:is|are)(?: not\b(?! any| enough)|[.,;:)]|$)",
        "name the thing",
    ),
    (
        "as it is",
        r"\bas (?:it|they) (?:is|are|was|were)"
        r"(?=[.,;:)]|$| \||(?: (?:and|but|for|if|in|on|or|when|where|with|without)\b))",
        "unchanged",
    ),
)
_RULES = [(name, re.compile(pattern), advice) for name, pattern, advice in RULES]

# A string or a comment of C++; strings are matched only to skip what looks like a comment in them.
_CPP = re.compile(
    r'R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\''
    r"|(?P<comment>//[^\n]*|/\*.*?\*/)",
    re.DOTALL,
)


def _blank(text: str) -> str:
    """Return `text` with all but its line breaks made spaces."""
    return re.sub(r"[^\n]", " ", text)


def _markdown(text: str) -> str:
    """Return the prose of a page; a piece of code within a line becomes one word."""
    text = re.sub(
        r"^([ \t]*)(```|~~~).*?^\1\2[ \t]*$",
        lambda m: _blank(m[0]),
        text,
        flags=re.DOTALL | re.MULTILINE,
    )
    text = re.sub(r"<!--.*?-->", lambda m: _blank(m[0]), text, flags=re.DOTALL)
    text = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", lambda m: re.sub(r"[^\n]", "X", m[0]), text)
    text = re.sub(r"\]\([^)\s]*\)", lambda m: _blank(m[0]), text)
    # (A row, an item or a heading does not go on in the next one.)
    return re.sub(r"^(?=[ \t]*(?:\||#|[*-] |\d+\. ))", "\0", text, flags=re.MULTILINE)


def _python(text: str) -> str:
    """Return the comments and docstrings of a module."""
    lines = [_blank(line) for line in text.splitlines()]

    def keep(row: int, column: int, words: str) -> None:
        for offset, line in enumerate(words.split("\n")):
            start = column if offset == 0 else 0
            lines[row + offset] = " " * start + line

    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            keep(token.start[0] - 1, token.start[1], token.string.lstrip("#!"))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                words = ast.get_source_segment(text, first) or ""
                keep(first.lineno - 1, 0, words.strip("\"'rR"))
    return "\n".join(lines)


def _cpp(text: str) -> str:
    """Return the comments of a C++ file."""
    kept, end = [], 0
    for match in _CPP.finditer(text):
        kept.append(_blank(text[end : match.start()]))
        comment = match["comment"] or ""
        kept.append(re.sub(r"//+|/\*|\*/", "  ", comment) or _blank(match[0]))
        end = match.end()
    return "".join(kept) + _blank(text[end:])


_PROSE = {".md": _markdown, ".py": _python, ".h": _cpp, ".cc": _cpp}


def _blocks(prose: str) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Yield each paragraph as one line, and the places in it at which lines of the file begin."""
    words = ""
    places: list[tuple[int, int]] = []
    for number, line in enumerate(prose.split("\n"), 1):
        line_words = " ".join(line.replace("\0", "").split())
        if words and (not line_words or line.startswith("\0")):
            yield words, places
            words, places = "", []
        if line_words:
            words += " " * bool(words)
            places.append((len(words), number))
            words += line_words
    if words:
        yield words, places


def findings(path: Path) -> Iterator[str]:
    """Yield one line of text for each habit that is found in a file."""
    prose = _PROSE[path.suffix](path.read_text(encoding="utf-8"))
    for words, places in _blocks(prose):
        for name, pattern, advice in _RULES:
            for match in pattern.finditer(words):
                number = max(line for start, line in places if start <= match.start())
                yield f'{path}:{number}: "{match[0].strip()}": habit "{name}"; write: {advice}'


def _files(names: Sequence[str]) -> list[Path]:
    """Return the files that are named, and those in the folders that are named."""
    files: list[Path] = []
    for name in names:
        path = Path(name)
        if not path.exists():
            raise SystemExit(f"error: {name} does not exist")
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        files += [file for file in inside if file.suffix in _PROSE and "_pb2" not in file.name]
    return files


_MEMBERS = re.compile("<!-- members -->.*<!-- /members -->", re.DOTALL)


def count_words(files: Sequence[Path]) -> int:
    """Return how many words pages have: what stands between spaces and has a letter or digit.

    The table of docs/internals.md is generated from the code, for lookup, and does not count.
    """
    pages = [path.read_text(encoding="utf-8") for path in files if path.suffix == ".md"]
    pages = [_MEMBERS.sub("", page) for page in pages]
    return sum(bool(re.search(r"\w", word)) for page in pages for word in page.split())


def main(argv: Sequence[str] | None = None) -> int:
    """Check the files of the command line; return the exit status."""
    parser = argparse.ArgumentParser(description="Find habits of English to drop.")
    parser.add_argument("paths", nargs="+", help="files, and folders with all that is in them")
    parser.add_argument("--words", action="store_true", help="print the words of the pages")
    parser.add_argument("--max-words", type=int, help="fail if the pages have more words")
    args = parser.parse_args(argv)
    files = _files(args.paths)
    found = [finding for path in files for finding in findings(path)]
    print(*found, sep="\n", end="\n" if found else "")
    words = count_words(files)
    if args.words:
        print(f"{words} words in {sum(path.suffix == '.md' for path in files)} pages")
    too_long = args.max_words is not None and words > args.max_words
    if too_long:
        print(f"error: the pages have {words} words, more than {args.max_words}")
    if found:
        print(f"error: {len(found)} findings in {len(files)} files")
    return int(bool(found) or too_long)


if __name__ == "__main__":
    sys.exit(main())
