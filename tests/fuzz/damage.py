"""Damage to bytes, to JSON, and to the header of a safetensors file."""

import json
import random
import struct
from typing import Any

ODD: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 3, 17, 2**31, 2**63, -(2**63), 10**400, 0.0, -0.5, 1e-3, 1e308, -1e-320,
    float("nan"), float("inf"), "", " ", "x", "vla", "1e-3", "nan", "../..", "a\0b", "\ud800", "é" * 300, [], {}, [1],
    [[]], {"a": 1}, {"": None}, ["vla", 3], [None],
)  # fmt: skip
DEEP = 3000  # levels of nesting that no parser should follow


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Other bytes. Files of nothing but bytes know no more."""
    if not data:
        return draw.randbytes(draw.randint(1, 20))
    begin = draw.randrange(len(data))
    size = min(draw.choice((1, 1, 2, 8, 64)), len(data) - begin)
    part = bytearray(data)
    match draw.randrange(9):
        case 0 | 1 | 2:  # most damage is a flipped bit
            part[begin] ^= 1 << draw.randrange(8)
        case 3:
            part[begin : begin + size] = draw.randbytes(size)
        case 4:
            del part[begin:]
        case 5:
            part[begin:begin] = draw.randbytes(size)
        case 6:
            del part[begin : begin + size]
        case 7:
            part[begin : begin + size] = bytes(size)
        case 8:
            other = draw.randrange(len(data))
            part[begin : begin + size] = data[other : other + size]
    return bytes(part)


def damaged_tensors(data: bytes, draw: random.Random) -> bytes:
    """Other bytes, or another header: names, types, shapes, places and what is said about them."""
    if draw.random() < 0.6:
        return damaged(data, draw)
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    text = json.dumps(other_json(header, draw)).encode()
    if draw.random() < 0.5:
        text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def damaged_json(text: bytes, draw: random.Random) -> bytes:
    """Other bytes, other values, or brackets without end."""
    choice = draw.random()
    if choice < 0.4:
        return damaged(text, draw)
    if choice < 0.42:
        return b"[" * DEEP + b"]" * DEEP
    return json.dumps(other_json(json.loads(text), draw)).encode()


def other_json(value: Any, draw: random.Random) -> Any:
    """The value with one change, somewhere inside."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(list(value))
        rest = {name: each for name, each in value.items() if name != key}
        match draw.randrange(8):
            case 0:
                return rest
            case 1:
                return {**rest, draw.choice((f"{key}x", key.upper(), "", "step")): value[key]}
            case 2:
                return {**value, draw.choice(list(value)): value[key]}
            case _:
                return {**value, key: other_json(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.9:
        place = draw.randrange(len(value))
        match draw.randrange(4):
            case 0:
                return value[:place] + value[place + 1 :]
            case 1:
                return [*value, value[place]]
            case _:
                return [*value[:place], other_json(value[place], draw), *value[place + 1 :]]
    if isinstance(value, int) and not isinstance(value, bool) and draw.random() < 0.5:
        return value + draw.choice((-8, -1, 1, 2, 8, 64))
    if isinstance(value, str) and value and draw.random() < 0.5:
        return damaged(value.encode(), draw).decode(errors="replace")
    return draw.choice(ODD)
