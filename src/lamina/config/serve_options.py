"""What `lamina serve` can be told."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, fields
from typing import NamedTuple

from lamina.config import joining
from lamina.config.chosen_depth import parse_depth
from lamina.config.generate_options import ModelFiles
from lamina.config.plug_in_options import PlugInConfig
from lamina.config.search_options import SearchConfig
from lamina.errors import ConfigError
from lamina.fields import REQUIRED, check, flag, part

_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]{0,62})=(.+)", re.DOTALL)
_ORIGIN = re.compile(r"https?://[^/\s]+")


class NamedModel(NamedTuple):
    """A word of the command line: a model's files, and what to call it."""

    name: str | None  # en-de: its languages; of a language model its name
    files: ModelFiles


@dataclass(frozen=True, kw_only=True)
class ServedFiles(ModelFiles):
    """Model."""

    path: tuple[str, ...] = flag(  # type: ignore[assignment]
        REQUIRED, "checkpoints, each a model of its own: several pairs of languages, language models, masked ones. a.pt:b.pt "
                  "is an ensemble; en-de=a.pt names the languages where the checkpoint does not, lm=b.pt a language model",
        name="models", positional=True, is_list=True)

    @property
    def paths(self) -> list[str]:
        return [word for word in self.path if word]

    def each(self) -> list[NamedModel]:
        """The models, each with what its own command line would say."""
        shared = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "path"}
        found = []
        for word in self.paths:
            named = _NAMED.fullmatch(word)
            name, path = named.groups() if named else (None, word)
            found.append(NamedModel(name, ModelFiles(path=path, **shared)))
        return found


@dataclass(frozen=True, kw_only=True)
class ServiceLimits:
    """Limits."""

    max_body_kib: int = flag(1024, "largest body of a request, in KiB")
    max_chars: int = flag(20_000, "maximum characters per request, all texts together")
    max_texts: int = flag(128, "maximum texts per request")
    max_beam: int = flag(16, "largest beam that a request may ask for")
    max_new_tokens: int = flag(1024, "maximum tokens that a language model writes per request")
    queue: int = flag(1024, "maximum requests waiting for a model; further ones are asked to come back")
    max_connections: int = flag(2048, "maximum open connections")
    timeout: float = flag(60.0, "seconds after which a request is given up")
    grace: float = flag(30.0, "seconds that running requests have to finish when the server is told to stop")

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            name = item.name.replace("_", "-")
            lowest = 0 if name == "grace" else 1 if isinstance(value, int) else 0.1
            check(lowest <= value <= 2**31, f"--{name} is {value}; it must be at least {lowest}.")

    @property
    def max_body(self) -> int:
        return self.max_body_kib * 1024


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Serving."""

    files: ServedFiles = part(ServedFiles)
    host: str = flag("127.0.0.1", "address to listen on; 0.0.0.0 is every network that this machine is in")
    port: int = flag(5000, "port to listen on; 0: any free one")
    cascades: tuple[str, ...] = flag((), "files that `lamina calibrate` wrote, for requests of depth auto; each knows its "
                                         "model. One beside a checkpoint is found without this", name="cascade", is_list=True,
                                     metavar="FILE")
    depth: str = flag("full", "depth of requests that name none: full, half, auto, or so many layers of encoder and decoder as "
                              "in 6-3", metavar="DEPTH")
    remove_bpe: str | None = flag(None, f"join subwords at this mark: {joining.HELP}", metavar="[MARK]",
                                  bare_value=joining.BPE_MARK, aliases=("post-process",))
    slots: int = flag(64, "sentences that a model works on at once")
    api_keys: str | None = flag(None, "file of keys, one per line, of which a request must carry one; LAMINA_API_KEYS in the "
                                      "environment holds them too, separated by commas", metavar="FILE")
    cors_origins: tuple[str, ...] = flag((), "web pages of these origins may send requests, such as https://example.org; none "
                                             "but our own page per default", name="cors-origin", is_list=True,
                                         metavar="ORIGIN")
    trusted_proxies: tuple[str, ...] = flag((), "addresses of reverse proxies: X-Forwarded-For tells who asks, if one of them "
                                                "sent it", name="trusted-proxy", is_list=True, metavar="ADDRESS")
    has_page: bool = flag(True, "serve the page at /", name="page")
    logs_requests: bool = flag(False, "print a line for each request: method, path, status and time, never its text",
                               name="log-requests")
    limits: ServiceLimits = part(ServiceLimits)
    search: SearchConfig = part(SearchConfig)
    plug_ins: PlugInConfig = part(PlugInConfig)

    def __post_init__(self) -> None:
        check(bool(self.host.strip()), "--host is empty; write an address, or leave it out for 127.0.0.1.")
        check(0 <= self.port <= 65535, f"--port is {self.port}; it must lie between 0 and 65535.")
        check(self.slots >= 1, f"--slots is {self.slots}; it must be at least 1.")
        check(self.search.beam <= self.limits.max_beam,
              f"--beam is {self.search.beam}, above --max-beam {self.limits.max_beam}. Raise that, or choose a smaller beam.")
        check(self.search.constraint_order is None,
              "--constraints belongs to requests: they carry their phrases in the field `constraints`. Leave it out.")
        parse_depth(self.depth)
        joining.check_joiner(self.remove_bpe)
        for origin in self.cors_origins:
            check(bool(_ORIGIN.fullmatch(origin)),
                  f"--cors-origin is {origin!r}; it must be a scheme and a host, such as https://example.org, without a path.")
        for address in self.trusted_proxies:
            _check_address(address)


def _check_address(address: str) -> None:
    try:
        ipaddress.ip_network(address)
    except ValueError:
        raise ConfigError(f"--trusted-proxy is {address!r}; it must be an address such as 127.0.0.1, or a network such as "
                          "10.0.0.0/8.") from None
