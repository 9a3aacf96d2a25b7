"""YAML files that people write: read without surprises, and turned into the words one would type."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from lamina.errors import ConfigError
from lamina.files import LIMIT_FACTOR, LIMIT_SPARE, Budget


def read_mapping(path: str | Path, example: str = "`flag: value` lines, such as `max-tokens: 4096`") -> dict[str, Any]:
    """What a file holds, which must be a mapping; whatever is wrong with it is one line that does not name the file."""
    import yaml

    try:
        text = Path(path).read_text(encoding="utf-8")
        content = yaml.safe_load(text)
        Budget(LIMIT_FACTOR * len(text) + LIMIT_SPARE).spend(content)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}.") from None
    except (RecursionError, ValueError) as error:  # depth, or a date or number that cannot be
        raise ConfigError(f"not YAML: {error}.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise ConfigError(f"not YAML{where}: {getattr(error, 'problem', error)}.") from None
    if not isinstance(content, dict):
        raise ConfigError(f"must hold {example}.")
    return content


def flag_words(values: Mapping[str, Any], positional: Collection[str] = ()) -> list[str]:
    """{"max-tokens": 4096, "no_save": True} as ["--max-tokens=4096", "--no-save"]."""
    words: list[str] = []
    for key, value in values.items():
        name = str(key).replace("_", "-")
        if value is None:
            continue
        if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value)):
            # Written out, a few nested aliases could fill the memory.
            raise ConfigError(f"{name} holds values inside values; a flag takes one, or a list of them.")
        if isinstance(value, bool):
            off = name.removeprefix("no-") if name.startswith("no-") else f"no-{name}"
            words.append(f"--{name if value else off}")
        else:
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            words.append(text if name in positional else f"--{name}={text}")
    return words
