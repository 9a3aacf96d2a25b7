"""How pieces become words: what --remove-bpe takes, a mark or the name of a rule.

fairseq 0.9 knows marks and few names, later versions names (`fairseq.data.utils.post_process`); both are meant here.
"""

from __future__ import annotations

from typing import NamedTuple

from lamina.errors import ConfigError

BPE_MARK = "@@ "
HELP = (f"`{BPE_MARK}` if given bare, the same as `subword_nmt`; or the rule's name where pieces mark the words' ends or "
        "beginnings: `sentencepiece`, `wordpiece`, `letter`")


class Joiner(NamedTuple):
    """The mark of pieces that are not the last of their word, or, if `is_space`, what stands for the spaces between words."""

    mark: str
    is_space: bool = False
    is_at_end: bool = False  # of a word's last piece, if it stands for a space; it begins the first one otherwise

    @property
    def joins(self) -> bool:
        return bool(self.mark)

    def marks(self, symbol: str) -> bool:
        """Whether a symbol of a dictionary carries the mark."""
        return self.mark in symbol if self.is_space else symbol.endswith(self.mark)


_RULES = {
    "subword_nmt": Joiner(BPE_MARK.rstrip()),
    "sentencepiece": Joiner("▁", is_space=True),
    "wordpiece": Joiner("_", is_space=True),
    "letter": Joiner("|", is_space=True, is_at_end=True),
    "_EOW": Joiner("_EOW", is_space=True, is_at_end=True),
    "none": Joiner(""),
}
# Other names that fairseq has, of segmentations (--bpe) and rules. Taken for marks they would join nothing, silently.
_BYTES = "its pieces stand for bytes by a table that a dictionary does not hold. Leave it out, and decode what is printed"
_REFUSED = {
    **dict.fromkeys(("gpt2", "hf_byte_bpe", "byte_bpe", "bytes"), _BYTES),
    **dict.fromkeys(("bert", "characters", "silence"), f"Lamina has no such rule; it has {', '.join(_RULES)}"),
    "fastbpe": f"fastBPE marks pieces as subword-nmt does. Write --{{flag}} subword_nmt, or '{BPE_MARK}'",
}


def joiner_of(text: str, flag: str = "remove-bpe") -> Joiner:
    """What `--remove-bpe TEXT` means; a text that is no rule's name is a mark."""
    if text in _REFUSED:
        raise ConfigError(f"--{flag} {text}: {_REFUSED[text].format(flag=flag)}.")
    return _RULES.get(text) or Joiner(text.rstrip())


def check_joiner(text: str | None, flag: str = "remove-bpe") -> None:
    """For __post_init__."""
    if text is not None:
        joiner_of(text, flag)
