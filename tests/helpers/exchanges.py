"""What `tests/test_exchanges.py` shares with other tests."""


def naive_starts(exchanges: list[int], max_len: int) -> list[int]:
    """Return where the pieces of a chat start, token by token; takes the tokens of each exchange."""
    starts, filled, place = [0], 0, 0
    for size in exchanges:
        is_begun = filled > 0
        for token in range(size):
            if filled == max_len or (token == 0 and is_begun and filled + size > max_len):
                starts.append(place)
                filled = 0
            filled += 1
            place += 1
    return starts
