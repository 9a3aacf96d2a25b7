"""Where a person's own parts come from: an option of every command that reads or makes models."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.fields import flag


@dataclass(frozen=True, kw_only=True)
class PlugInConfig:
    """Parts of your own."""

    user_dir: tuple[str, ...] = flag((), "Python file or folder that registers parts of your own (residuals, fusions, criteria "
                                         "and so on), imported before options are read; several are separated by commas",
                                     name="user-dir", metavar="PATH")
