"""Keys that requests carry: compared in constant time, never logged, kept as digests."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from lamina.errors import ConfigError

ENVIRONMENT = "LAMINA_API_KEYS"
SHORTEST = 8
SCHEMES = ("bearer ", "deepl-auth-key ")


class ApiKeys:
    """None at all: everybody may ask."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = [_digest(key) for key in dict.fromkeys(keys)]

    @property
    def are_needed(self) -> bool:
        return bool(self._digests)

    def number_of(self, key: str | None) -> int | None:
        """Which key this is; None: none of ours. It takes as long for each."""
        own, found = _digest(key or ""), None
        for number, digest in enumerate(self._digests):
            if hmac.compare_digest(own, digest):
                found = number
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def key_in(headers: Mapping[str, str]) -> str | None:
    """Of `Authorization: Bearer KEY` (OpenAI's clients) or `DeepL-Auth-Key KEY` (DeepL's), or of X-API-Key."""
    given = headers.get("authorization", "")
    for scheme in SCHEMES:
        if given.lower().startswith(scheme):
            return given[len(scheme) :].strip()
    return headers.get("x-api-key")


def load_keys(path: str | None, environ: Mapping[str, str] = os.environ) -> ApiKeys:
    """Of a file, one a line, `#` before comments, and of the environment. No message ever quotes one."""
    keys = [key.strip() for key in environ.get(ENVIRONMENT, "").replace("\n", ",").split(",") if key.strip()]
    if path is not None:
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigError(f"--api-keys {path} cannot be read: {reason}. Name a file with one key per line.") from None
        own = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not own:
            raise ConfigError(f"--api-keys {path} holds no key. Write one per line, or leave it out to serve everybody.")
        keys += own
    short = sum(len(key) < SHORTEST for key in keys)
    if short:
        raise ConfigError(f"{short} of the API keys {'is' if short == 1 else 'are'} shorter than {SHORTEST} characters. Choose "
                          "longer ones, for example with: openssl rand -hex 16")
    return ApiKeys(keys)
