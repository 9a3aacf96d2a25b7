"""For mkdocstrings: paragraphs of a docstring that begin with >>> are its examples, and are shown as code."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^|(?<=\n\n))(>>> .*(?:\n.+)*)")
# `valid, test: the same for both`, and the lines that continue it.
TOGETHER = re.compile(r"(?m)^(    +)(\w+(?:, \w+)+): (.*(?:\n\1 +.*)*)$")


class ShownExamples(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is None:
            return
        shown = EXAMPLE.sub(lambda match: "Examples:\n" + re.sub(r"(?m)^", "    ", match[1]), obj.docstring.value)
        # A row for each argument: otherwise its type and default are not found.
        obj.docstring.value = TOGETHER.sub(
            lambda match: "\n".join(f"{match[1]}{name}: {match[3]}" for name in match[2].split(", ")), shown)
