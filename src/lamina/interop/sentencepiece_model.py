"""The pieces of a sentencepiece model and their scores, read from its file: a message of protocol buffers."""

from __future__ import annotations

import struct
from collections.abc import Iterator

# Fields of ModelProto, TrainerSpec, NormalizerSpec and SentencePiece, and values of theirs, by number.
_PIECE, _TRAINER, _NORMALIZER = 1, 2, 3
_MODEL_TYPE, _UNIGRAM, _BYTE_FALLBACK = 3, 1, 35
_CHARSMAP = 2
_TEXT, _SCORE, _KIND, _NORMAL = 1, 2, 3, 1


def unigram_pieces(model: bytes) -> dict[str, float] | None:
    """Of a unigram model that takes characters as they are and knows no bytes; None if it is of another kind."""
    pieces: dict[str, float] = {}
    for number, value in _fields(model):
        if number == _TRAINER and not _is_plain_unigram(value):
            return None
        if number == _NORMALIZER and dict(_fields(value)).get(_CHARSMAP):
            return None
        if number == _PIECE:
            own = dict(_fields(value))
            if _number(own.get(_KIND), _NORMAL) == _NORMAL:
                pieces[own[_TEXT].decode("utf-8")] = struct.unpack("<f", own.get(_SCORE, bytes(4)))[0]
    return pieces


def _is_plain_unigram(trainer: bytes) -> bool:
    own = dict(_fields(trainer))
    return _number(own.get(_MODEL_TYPE), _UNIGRAM) == _UNIGRAM and not _number(own.get(_BYTE_FALLBACK), 0)


def _number(value: bytes | None, default: int) -> int:
    return default if value is None else int.from_bytes(value, "little")


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Each field's number and content; numbers as little-endian bytes."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        match key & 7:
            case 0:
                value, place = _varint(message, place)
                yield key >> 3, value.to_bytes(10, "little")
                continue
            case 1:
                size = 8
            case 2:
                size, place = _varint(message, place)
            case 5:
                size = 4
            case kind:
                raise ValueError(f"no sentencepiece model: a field of the kind {kind}")
        yield key >> 3, message[place : place + size]
        place += size


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
