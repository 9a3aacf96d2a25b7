"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lamina.errors import DataError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A name to write to, beside `path`; what is there when the block ends takes its place, unless the block fails."""
    part = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        os.replace(part, path)
    except OSError as error:
        raise DataError(f"{path} could not be written: {error.strerror or error}. Free some space or write it "
                        "elsewhere.") from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
