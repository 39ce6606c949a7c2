"""What `tests/test_turns.py` shares with other tests."""


def naive_cuts(turns: list[int], max_len: int) -> list[int] | None:
    """Cut a chat between turns, each piece as long as possible; takes the tokens of each turn."""
    cuts, filled, place = [], 0, 0
    for turn in turns:
        if turn > max_len:
            return None
        if filled + turn > max_len:
            cuts.append(place)
            filled = 0
        filled += turn
        place += turn
    return cuts
