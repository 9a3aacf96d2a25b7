"""What is counted, and the text in which Prometheus reads it."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Mapping

from lamina.serve.exchange import LATENCY_BOUNDS, EngineStats, Histogram

RATE_SECONDS = 60.0  # that tokens/s are the mean of


class Counters:
    """Of the HTTP side; engines count for themselves. Used by the event loop's thread alone."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.latencies: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.characters: Counter[str] = Counter()  # by client's key
        self.tokens: Counter[str] = Counter()  # of language models
        self._recent: deque[tuple[float, int]] = deque()
        self._started = time.monotonic()

    def answered(self, api: str, status: int, seconds: float) -> None:
        self.requests[api, status] += 1
        self.latencies[api].add(seconds)

    def add_tokens(self, number: int) -> None:
        self._recent.append((time.monotonic(), number))
        self._forget()

    def _forget(self) -> None:
        while self._recent and self._recent[0][0] < time.monotonic() - RATE_SECONDS:
            self._recent.popleft()

    def tokens_per_second(self) -> float:
        """Over the last minute, or since the start."""
        self._forget()
        seconds = min(RATE_SECONDS, time.monotonic() - self._started)
        return sum(number for _, number in self._recent) / max(1.0, seconds)


def prometheus_text(counters: Counters, engines: Mapping[str, EngineStats], connections: int) -> str:
    """`engines` by the name of their model, en-de."""
    page = _Page()
    page.add("lamina_requests_total", "counter", "Requests answered, by API and status.",
             [({"api": api, "status": str(status)}, number) for (api, status), number in counters.requests.items()])
    page.add("lamina_connections", "gauge", "Open connections.", [({}, connections)])
    page.histograms("lamina_request_seconds", "Seconds from a request's head to its answer, by API.",
                    [({"api": api}, own) for api, own in counters.latencies.items()])
    page.add("lamina_tokens_per_second", "gauge", "Target tokens per second, the mean of the last minute.",
             [({}, counters.tokens_per_second())])
    page.add("lamina_generated_tokens_total", "counter", "Tokens that language models wrote.",
             [({"model": name}, number) for name, number in counters.tokens.items()])
    for name, kind, about, value in (
            ("lamina_queue", "gauge", "Sentences that wait.", lambda own: own.queue),
            ("lamina_running", "gauge", "Sentences that are being translated.", lambda own: own.running),
            ("lamina_translations_total", "counter", "Requests translated.", lambda own: own.requests_done),
            ("lamina_refused_total", "counter", "Requests that found the queue full.", lambda own: own.requests_refused),
            ("lamina_cancelled_total", "counter", "Requests whose client left or that took too long.",
             lambda own: own.requests_cancelled),
            ("lamina_failed_total", "counter", "Requests that the model failed at.", lambda own: own.requests_failed),
            ("lamina_workers_lost_total", "counter", "Processes that were killed, and replaced.", lambda own: own.workers_lost),
            ("lamina_tokens_total", "counter", "Target tokens written.", lambda own: own.tokens)):
        page.add(name, kind, about, [({"model": model}, value(stats)) for model, stats in engines.items()])
    page.add("lamina_sentences_total", "counter", "Sentences translated, by the depth that answered.",
             [({"model": model, "depth": depth}, number) for model, stats in engines.items()
              for depth, number in stats.sentences.items()])
    page.add("lamina_cascade_total", "counter", "Sentences of depth auto, kept at its first depth or repeated with all layers.",
             [({"model": model, "outcome": outcome}, number) for model, stats in engines.items()
              for outcome, number in (("kept", stats.cascade_kept), ("repeated", stats.cascade_repeated))])
    page.histograms("lamina_translation_seconds", "Seconds from the queue to the answer, by the depth asked for.",
                    [({"model": model, "depth": depth}, own) for model, stats in engines.items()
                     for depth, own in stats.latencies.items()])
    return page.text


class _Page:
    def __init__(self) -> None:
        self.text = ""

    def add(self, name: str, kind: str, about: str, values: list[tuple[dict[str, str], float]]) -> None:
        self.text += f"# HELP {name} {about}\n# TYPE {name} {kind}\n"
        self.text += "".join(f"{name}{_labels(labels)} {_number(value)}\n" for labels, value in values)

    def histograms(self, name: str, about: str, values: list[tuple[dict[str, str], Histogram]]) -> None:
        self.add(name, "histogram", about, [])
        for labels, own in values:
            total = 0
            for bound, number in zip((*LATENCY_BOUNDS, None), own.counts, strict=True):
                total += number
                shown = {**labels, "le": "+Inf" if bound is None else f"{bound:g}"}
                self.text += f"{name}_bucket{_labels(shown)} {total}\n"
            self.text += f"{name}_sum{_labels(labels)} {own.total:.6f}\n{name}_count{_labels(labels)} {total}\n"


def _labels(labels: Mapping[str, str]) -> str:
    escaped = (f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return "{" + ",".join(escaped) + "}" if labels else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:.6g}"
