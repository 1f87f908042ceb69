"""Random copies: the content that a copier reads, the content that it writes instead, and the lengths of its writes."""

from mounting import KIB, MIB

BLOCK = 4096
SMALLEST = 128 * KIB  # a shorter source is not adopted


def random_content(dice, length):
    """Returns bytes without a pattern, sometimes with holes (whole blocks of zeros)."""
    data = bytearray(dice.randbytes(length))
    if dice.random() < 0.3:
        for _ in range(dice.randrange(1, 6)):
            at = dice.randrange(length // BLOCK + 1) * BLOCK
            end = min(length, at + dice.randrange(1, 64) * BLOCK)
            data[at:end] = bytes(max(0, end - at))
    return bytes(data)


def random_length(dice, longest):
    """Returns a length that is mostly long enough for adoption, and often close to a block's border."""
    length = dice.choice((dice.randrange(2 * SMALLEST), *(dice.randrange(SMALLEST, longest) for _ in range(4))))
    if dice.random() < 0.4:
        length = length // BLOCK * BLOCK + dice.choice((0, 0, 1, 511, BLOCK - 1))
    return min(length, longest)


def unlike(dice, data, at, end):
    """Returns the data with each byte from `at` to `end` changed."""
    mask = dice.randrange(1, 256)
    return data[:at] + data[at:end].translate(bytes(byte ^ mask for byte in range(256))) + data[end:]


DIFFERENCES = ("none", "none", "few", "many", "tail", "shorter", "longer", "all")


def altered(dice, data, difference):
    """Returns what is written where the predicted source has `data`."""
    length = len(data)
    if difference == "all":
        return dice.randbytes(length)
    if difference == "shorter":
        return data[: dice.randrange(length + 1)]
    if difference == "longer":
        return data + dice.randbytes(dice.randrange(1, 200 * KIB))
    if difference == "tail":
        at = dice.randrange(length + 1)
        return data[:at] + dice.randbytes(length - at)
    changes = {"none": 0, "few": dice.randrange(1, 5), "many": dice.randrange(20, 60)}[difference]
    for _ in range(changes if length else 0):
        at = dice.randrange(length)
        data = unlike(dice, data, at, min(length, at + dice.choice((1, 1, 100, 5000))))
    return data


def pieces(dice, data):
    """Splits the data into the pieces that a copier writes: all of one length, or of any length."""
    usual = dice.choice((4 * KIB, 16 * KIB, 64 * KIB, 64 * KIB, 256 * KIB, MIB, 100_001, None))
    at = 0
    while at < len(data):
        length = usual or dice.choice((1, 100, BLOCK, 10_000, 131_072, 700_000))
        length = max(length, len(data) // 64)
        yield data[at : at + length]
        at += length
