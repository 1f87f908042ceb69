"""Writes safetensors files without the library of that name, because tests on a bare machine need them, too."""

import json
import struct


def safetensors(tensors, begin=0, alignment=8):
    """Returns a file of these tensors: name -> (dtype, shape, bytes). They begin `begin` bytes after a multiple of
    `alignment`."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * ((begin - 8 - len(text)) % alignment)
    return struct.pack("<Q", len(text)) + text + data


def parse(data):
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__")
    return {name: (one["dtype"], one["shape"], data[8 + length + one["data_offsets"][0] : 8 + length + one["data_offsets"][1]])
            for name, one in header.items()}
