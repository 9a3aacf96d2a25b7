"""For mkdocstrings: paragraphs of a docstring that begin with >>> are its examples, and are shown as code."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^|(?<=\n\n))(>>> .*(?:\n.+)*)")


class ShownExamples(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None and ">>> " in obj.docstring.value:
            shown = EXAMPLE.sub(lambda match: "Examples:\n" + re.sub(r"(?m)^", "    ", match[1]), obj.docstring.value)
            obj.docstring.value = shown
