"""Slow, obvious twins of the kernels: one item at a time, over lists."""

import struct
from bisect import bisect_left, insort
from collections import Counter
from itertools import count, pairwise
from math import ceil, log

import xxhash

# ---- packing: lengths -> packs, each a list of lengths in the order in which they were put in ----


def best_fit_decreasing(lengths, capacity, max_segments=None):
    """The pack with the least room takes the segment; among equals the one that changed last."""
    packs = []
    for length in sorted(lengths, reverse=True):
        takers = _takers(packs, length, capacity, max_segments)
        _put(length, max(reversed(takers), key=sum, default=None), packs)
    return packs


def first_fit_decreasing(lengths, capacity, max_segments=None):
    """The pack that was opened first takes the segment."""
    packs = []
    for length in sorted(lengths, reverse=True):
        takers = _takers(packs, length, capacity, max_segments)
        if takers:
            takers[0].append(length)
        else:
            packs.append([length])
    return packs


def spfhp(lengths, capacity, max_segments=None):
    """Worst fit, but a pack that was opened for a length takes no second segment of that length."""
    packs = []
    for length in sorted(lengths, reverse=True):
        takers = [pack for pack in _takers(packs, length, capacity, max_segments) if pack[0] != length]
        _put(length, min(reversed(takers), key=sum, default=None), packs)
    return packs


def sequential(lengths, max_len, max_segments=None):
    """Rows of (document, start, length), in source order: a piece that does not fit the open row closes it."""
    rows = []
    for piece in cut_documents(lengths, max_len, "split"):
        open_row = rows[-1] if rows else []
        fits = sum(length for _, _, length in [*open_row, piece]) <= max_len and len(open_row) < (
            max_segments or max_len
        )
        if open_row and fits:
            open_row.append(piece)
        else:
            rows.append([piece])
    return rows


def wrapped(lengths, max_len, max_segments=None):
    """Rows of (document, start, length): token by token, each row until it is full or holds its pieces."""
    rows = []
    for document, length in enumerate(lengths):
        for token in range(length):
            open_row = rows[-1] if rows else []
            goes_on = open_row and open_row[-1][0] == document
            full = sum(length for _, _, length in open_row) == max_len
            if open_row and not full and goes_on:
                open_row[-1] = (document, open_row[-1][1], open_row[-1][2] + 1)
            elif open_row and not full and len(open_row) < (max_segments or max_len):
                open_row.append((document, token, 1))
            else:
                rows.append([(document, token, 1)])
    return rows


def optimal_packs(lengths, capacity, max_segments=None):
    """The least number of packs that there is, by trying every way; for a handful of lengths."""
    return fewest_vector_rows([(length,) for length in lengths], [capacity], max_segments)


def fewest_vector_rows(items, capacities, max_segments=None):
    """The fewest rows for items, each a tuple of demands, by trying every way."""
    best = len(items)

    def place(index, rows):
        nonlocal best
        if len(rows) >= best:
            return
        if index == len(items):
            best = len(rows)
            return
        for row in rows:
            if _has_room(row, items[index], capacities) and len(row) < (max_segments or len(items)):
                row.append(items[index])
                place(index + 1, rows)
                row.pop()
        place(index + 1, [*rows, [items[index]]])

    place(0, [])
    return best


def _has_room(row, item, capacities):
    return all(sum(demands) <= capacity for *demands, capacity in zip(*row, item, capacities, strict=True))


def _takers(packs, length, capacity, max_segments):
    """The packs that have room for a segment, in the order of `packs`."""
    limit = max_segments or capacity
    return [pack for pack in packs if sum(pack) + length <= capacity and len(pack) < limit]


def _put(length, pack, packs):
    """Put a segment into a pack, or a new one; the pack that changed last is the last of `packs`."""
    if pack is None:
        packs.append([length])
        return
    position = next(index for index, other in enumerate(packs) if other is pack)
    packs.append([*packs.pop(position), length])


# ---- bounds ----


def l2_bound(lengths, capacity):
    """Bound L2 as Martello and Toth define it."""
    bounds = []
    for alpha in range(capacity // 2 + 1):
        alone = [length for length in lengths if length > capacity - alpha]
        large = [length for length in lengths if capacity - alpha >= length > capacity / 2]
        small = [length for length in lengths if capacity / 2 >= length >= alpha]
        excess = sum(small) - (len(large) * capacity - sum(large))
        bounds.append(len(alone) + len(large) + max(0, ceil(excess / capacity)))
    return max(bounds)


# ---- plan: documents -> segments, and the randomness of the deal ----


def cut_documents(lengths, max_len, long):
    """(document, start, length) of every segment, in source order."""
    segments = []
    for document, length in enumerate(lengths):
        if length > max_len and long == "drop":
            continue
        if length > max_len and long == "truncate":
            segments.append((document, 0, max_len))
            continue
        segments += [(document, start, min(max_len, length - start)) for start in range(0, length, max_len)]
    return segments


def account(lengths, pieces, placed, long):
    """What became of every document and token, one at a time, by the names of the manifest's totals.

    `pieces` are the (document, start, length) that a policy makes of documents, `placed` those that rows hold.
    """
    documents, tokens = Counter(), Counter()
    for document, length in enumerate(lengths):
        kept, packed = (
            Counter(token for d, start, size in segments if d == document for token in range(start, start + size))
            for segments in (pieces, placed)
        )
        fate = "empty" if not length else "too_long" if not kept else "untrained" if not packed else "packed"
        documents[fate] += 1
        documents["split"] += sum(d == document for d, _, _ in placed) > 1
        documents["truncated"] += 0 < len(kept) < length
        for token in range(length):
            if packed[token]:
                assert packed[token] == 1
                tokens["packed"] += 1
            else:
                tokens["untrained" if kept[token] else "truncated" if long == "truncate" else "too_long"] += 1
    return {
        "documents": len(lengths),
        "documents_split": documents["split"],
        "documents_truncated": documents["truncated"],
        "documents_dropped": {reason: documents[reason] for reason in ("empty", "too_long", "untrained")},
        "tokens": sum(lengths),
        "tokens_packed": tokens["packed"],
        "tokens_truncated": tokens["truncated"],
        "tokens_dropped": {reason: tokens[reason] for reason in ("too_long", "untrained")},
    }


MASK, GOLDEN, FACTORS = 2**64 - 1, 0x9E3779B97F4A7C15, (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def mixed(value):
    """The finalizer of SplitMix64."""
    value &= MASK
    value = (value ^ (value >> 30)) * FACTORS[0] & MASK
    value = (value ^ (value >> 27)) * FACTORS[1] & MASK
    return value ^ (value >> 31)


def draws(size, *, seed, purpose, stream):
    """SplitMix64 draws 0..size-1 of a stream, in Python integers."""
    return [draw(number, seed=seed, purpose=purpose, stream=stream) for number in range(size)]


def draw(number, *, seed, purpose, stream):
    """One SplitMix64 draw of a stream."""
    return mixed(key_of(seed, purpose, stream) + number * GOLDEN)


def key_of(seed, purpose, stream):
    """The key of a stream of draws."""
    key = mixed(seed + GOLDEN)
    key = mixed(key ^ (purpose * GOLDEN & MASK))
    return mixed(key ^ (stream * FACTORS[0] & MASK))


def held_out(contents, holdout, seed):
    """Which of some contents, lists of tokens, a share holds out; copies go together, and what is empty never does."""
    key = key_of(seed, 17, 0)
    hashes = [xxhash.xxh3_64_intdigest(struct.pack(f"<{len(each)}i", *each), key) >> 11 for each in contents]
    return [bool(each) and number < int(holdout * 2**53) for number, each in zip(hashes, contents, strict=True)]


def permuted(index, size, *, seed, purpose, stream):
    """A Feistel network of 8 rounds, walked until the result is below the size."""
    return permuted_by(key_of(seed, purpose, stream), index, size)


def permuted_by(key, index, size):
    """The same, given the key of its draws."""
    bits = next(bits for bits in range(1, 40) if 4**bits >= size)
    drawn = [mixed(key + number * GOLDEN) for number in range(8 * 2**bits)]
    while True:
        high, low = divmod(index, 2**bits)
        for step in range(8):
            high, low = low, high ^ (drawn[8 * low + step] // 2 % 2**bits)
        index = high * 2**bits + low
        if index < size:
            return index


def permutation(size, *, seed, purpose, stream):
    """Fisher and Yates with SplitMix64 draws."""
    bits = draws(size, seed=seed, purpose=purpose, stream=stream)
    numbers = list(range(size))
    for i in range(size - 1, 0, -1):
        j = int((bits[i] >> 11) * 2.0**-53 * (i + 1))
        numbers[i], numbers[j] = numbers[j], numbers[i]
    return numbers


# ---- rows: what is derived from the boundaries ----


def masked_labels(rows, lengths):
    """Labels with -100 at the head of every segment and at padding; `lengths[r]` are row r's segments."""
    masked = []
    for row, segments in zip(rows, lengths, strict=True):
        labels = []
        for length in segments:
            labels += [-100, *row[len(labels) + 1 : len(labels) + length]]
        masked.append(labels + [-100] * (len(row) - len(labels)))
    return masked


def restarted_positions(lengths, max_len):
    """Position ids of rows, given the lengths of their segments."""
    return [
        [position for length in [*segments, max_len - sum(segments)] for position in range(length)]
        for segments in lengths
    ]


# ---- best-fit decreasing for real sizes: item by item as above, the packs kept sorted by room ----


def best_fit_packs(lengths, capacity):
    """How many packs best-fit decreasing opens; the same as len(best_fit_decreasing(...)) without a limit."""
    rooms = []
    packs = 0
    for length in sorted(lengths, reverse=True):
        at = bisect_left(rooms, length)
        if at == len(rooms):
            packs += 1
            insort(rooms, capacity - length)
        else:
            insort(rooms, rooms.pop(at) - length)
    return packs


# ---- loader: rows -> one batch ----


def flattened_batch(rows):
    """The batch of rows, each a dict of lists: real segments end to end, without padding."""
    batch = {"input_ids": [], "labels": [], "position_ids": [], "seq_idx": []}
    boundaries = [0]
    for row in rows:
        place = 0
        for length, document in zip(row["seq_lengths"], row["doc_ids"], strict=True):
            if document == -1:
                continue
            tokens = row["input_ids"][place : place + length]
            batch["input_ids"] += tokens
            batch["labels"] += row["labels"][place : place + length] if "labels" in row else [-100, *tokens[1:]]
            batch["position_ids"] += range(length)
            batch["seq_idx"] += [len(boundaries) - 1] * length
            boundaries.append(boundaries[-1] + length)
            place += length
    longest = max(end - start for start, end in pairwise(boundaries))
    return {
        **{name: [values] for name, values in batch.items()},
        "cu_seq_lens_q": boundaries,
        "cu_seq_lens_k": boundaries,
        "max_length_q": longest,
        "max_length_k": longest,
        "use_cache": False,
    }


def static_batch(rows, *, tokens, segments, max_len, pad_id):
    """The batch of rows as `flattened_batch` gives it, filled up to one shape, segment by segment."""
    batch = flattened_batch(rows)
    boundaries = list(batch["cu_seq_lens_q"])
    while boundaries[-1] < tokens:
        following = segments - len(boundaries)  # segments after the next, which have a token or more each
        length = min(max_len, tokens - boundaries[-1] - following)
        batch["input_ids"][0] += [pad_id] * length
        batch["labels"][0] += [-100] * length
        batch["position_ids"][0] += range(length)
        batch["seq_idx"][0] += [len(boundaries) - 1] * length
        boundaries.append(boundaries[-1] + length)
    assert len(boundaries) == segments + 1
    return {**batch, **dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), boundaries),
            **dict.fromkeys(("max_length_q", "max_length_k"), max_len)}  # fmt: skip


def next_tokens(row, ahead=1):
    """For every place of a row, a dict of lists: (position, number of the segment, label of the place so far ahead).

    The number counts from 1 and is 0 at padding; the label is -100 where that place is no token of the segment.
    """
    places, place = [], 0
    for number, (length, document) in enumerate(zip(row["seq_lengths"], row["doc_ids"], strict=True), 1):
        for position in range(length):
            label = -100
            if document != -1 and position + ahead < length:
                label = row["labels" if "labels" in row else "input_ids"][place + ahead]
            places.append((position, number if document != -1 else 0, label))
            place += 1
    return places


def loss_weights(rows):
    """(weight of every real token, documents that count): 1 / trained tokens of the document."""
    names, trained = [], []
    for row in rows:
        place = 0
        for length, document in zip(row["seq_lengths"], row["doc_ids"], strict=True):
            if document != -1:
                names += [document] * length
                trained += [label != -100 for label in row["labels"][place : place + length]]
            place += length
    counts = {name: sum(one for one, other in zip(trained, names, strict=True) if other == name) for name in names}
    weights = [one / counts[name] if one else 0.0 for one, name in zip(trained, names, strict=True)]
    return weights, sum(count > 0 for count in counts.values())


def row_order(rows, *, seed, epoch):
    """The numbers of rows sorted by their draw, of which the number itself replaces the low bits."""
    bits = len(bin(rows - 1)) - 2 if rows > 1 else 0

    def key(number):
        return draw(number, seed=seed, purpose=5, stream=epoch) >> bits, number

    return sorted(range(rows), key=key)


def lane_windows(shard_rows, *, lanes, window, seed, epoch):
    """For every lane its windows, each as (shards, rows in order): every row is dealt, cut and sorted by itself."""

    def sort(numbers, purpose, stream):
        return (
            numbers
            if seed is None
            else sorted(numbers, key=lambda n: draw(n, seed=seed, purpose=purpose, stream=stream))
        )

    shard_of = [shard for shard, rows in enumerate(shard_rows) for _ in range(rows)]
    dealt = [row for shard in sort(range(len(shard_rows)), 14, 0) for row, at in enumerate(shard_of) if at == shard]
    found = []
    for lane in range(lanes):
        own = dealt[lane * len(dealt) // lanes : (lane + 1) * len(dealt) // lanes]
        shards = sort(list(dict.fromkeys(shard_of[row] for row in own)), 15, epoch)
        count = ceil(len(shards) / window)
        windows = [shards[w * len(shards) // count : (w + 1) * len(shards) // count] for w in range(count)]
        found.append(
            [(part, sort([r for shard in part for r in own if shard_of[r] == shard], 16, epoch)) for part in windows]
        )
    return found


def lane_steps(shard_rows, *, lanes, window, seed, epoch, global_batch):
    """For every step the rows of each lane, in order."""
    windows = lane_windows(shard_rows, lanes=lanes, window=window, seed=seed, epoch=epoch)
    rows = [[row for _, part in lane for row in part] for lane in windows]
    taken = global_batch // lanes
    steps = ceil(sum(shard_rows) / global_batch)
    return [[lane[step * taken : (step + 1) * taken] for lane in rows] for step in range(steps)]


# ---- the loader: several datasets ----


def stream_of(shard_rows, *, seed, dataset):
    """The rows of a dataset, pass after pass without an end; `dataset` is its fingerprint, or None for no draws."""
    firsts = [sum(shard_rows[:shard]) for shard in range(len(shard_rows))]
    key = None if seed is None or dataset is None else key_of(seed, 18, int(dataset, 16))
    for number in count():
        shards, moved = list(range(len(shard_rows))), 0
        if key is not None:
            *drawn, last = draws(len(shards) + 1, seed=key, purpose=18, stream=number)
            shards.sort(key=lambda shard, drawn=drawn: drawn[shard])
            moved = last % sum(shard_rows)
        rows = []
        for shard in shards:
            for index in range(shard_rows[shard]):
                if key is not None:
                    index = permuted_by(draw(shard, seed=key, purpose=19, stream=number), index, shard_rows[shard])
                rows.append(firsts[shard] + index)
        yield from rows[moved:] + rows[:moved]


def epochs_of(shard_rows_of, counts, *, seed, fingerprints, epochs):
    """(dataset, row) of the rows of each epoch, those of the first dataset first."""
    streams = [
        stream_of(shard_rows, seed=seed, dataset=fingerprint if wanted % sum(shard_rows) else None)
        for shard_rows, wanted, fingerprint in zip(shard_rows_of, counts, fingerprints, strict=True)
    ]
    return [
        [(number, next(stream)) for number, stream in enumerate(streams) for _ in range(counts[number])]
        for _ in range(epochs)
    ]


# ---- exporting: the pieces of documents in a row -> what a trainer reads of it ----


def exported_row(target, pieces, *, max_len, pad_id):
    """The columns of a row of pieces (tokens, labels that are not shifted), token by token."""
    tail = max_len - sum(len(tokens) for tokens, _ in pieces)
    tokens, labels, following, positions, numbers, starts = [], [], [], [], [], []
    for number, (piece, wanted) in enumerate(pieces, 1):
        starts.append(len(tokens))
        for place, token in enumerate(piece):
            tokens.append(token)
            labels.append(wanted[place] if place else -100)
            following.append(wanted[place + 1] if place + 1 < len(piece) else -100)
            positions.append(place)
            numbers.append(number)
    if target == "megatron":
        mask = [int(label != -100) for label in following]
        return {"input_ids": tokens, "loss_mask": mask, "seq_start_id": starts}
    tokens, labels, following = tokens + [pad_id] * tail, labels + [-100] * tail, following + [-100] * tail
    if target == "automodel":
        lengths = [len(piece) for piece, _ in pieces]
        padded = [*lengths[:-1], lengths[-1] + tail]
        return {
            "input_ids": tokens, "labels": following, "position_ids": positions + list(range(tail)),
            "seq_lens": lengths, "seq_lens_padded": padded,
        }  # fmt: skip
    if target == "llama-factory":
        return {
            "input_ids": tokens, "labels": labels, "position_ids": positions + list(range(tail)),
            "attention_mask": numbers + [0] * tail,
        }  # fmt: skip
    if target == "torchtune":
        lengths = [len(piece) for piece, _ in pieces] + [tail] * (tail > 0)
        return {
            "tokens": tokens, "labels": labels, "input_pos": positions + list(range(tail)), "seq_lens": lengths
        }  # fmt: skip
    positions, numbers = positions + [0] * tail, numbers + [0] * tail
    return {
        "inputs": tokens,
        "inputs_position": positions,
        "inputs_segmentation": numbers,
        "targets": [max(label, 0) for label in following],
        "targets_position": positions,
        "targets_segmentation": [
            number if label != -100 else 0 for number, label in zip(numbers, following, strict=True)
        ],
    }


def megatron_sequences(row):
    """(tokens, labels, loss mask) of every sequence of a row, as Megatron-Bridge cuts them out of packed data.

    GPTSFTPackedDataset.collate_fn, Megatron-Bridge 0.3.1: the last token of a sequence is a label only.
    """
    ends = [*row["seq_start_id"][1:], len(row["input_ids"])]
    for start, end in zip(row["seq_start_id"], ends, strict=True):
        yield row["input_ids"][start : end - 1], row["input_ids"][start + 1 : end], row["loss_mask"][start : end - 1]


# ---- non-negative least squares: strategies, and what makes a solution one ----


def strategies(capacity, limit, smallest=1):
    """Every way to fill `capacity` tokens exactly with at most `limit` segments, ascending."""
    if limit == 0:
        return []
    longer = [
        [first, *rest]
        for first in range(smallest, capacity // 2 + 1)
        for rest in strategies(capacity - first, limit - 1, first)
    ]
    return [*longer, [capacity]] if capacity >= smallest else longer


def slopes(columns, damping, amounts, counts, weights):
    """What half the objective falls by per unit of each column: 0 in use and at most 0 elsewhere at the solution.

    The objective is sum(weights * (counts - columns @ amounts) ** 2) + sum(damping * amounts ** 2).
    """
    residual = list(counts)
    for column, amount in zip(columns, amounts, strict=True):
        for row, value in column:
            residual[row] -= value * amount
    return [
        sum(weights[row] * value * residual[row] for row, value in column) - damped * amount
        for column, damped, amount in zip(columns, damping, amounts, strict=True)
    ]


# ---- encoders: rows -> one batch, and masks ----


def encoder_rows(rows, *, offset=0):
    """(position, number of the segment) of every place of every row, and the places where segments begin."""
    places, pooled = [], []
    for number, row in enumerate(rows):
        found = [(position, segment) for position, segment, _ in next_tokens(row)]
        places.append([(position + offset, segment) for position, segment in found])
        pooled += [
            number * len(found) + place
            for place, (position, segment) in enumerate(found)
            if segment and (place == 0 or found[place - 1][1] != segment)
        ]
    return places, pooled


def masked_segment(tokens, document, start, *, mlm, epoch):
    """(tokens with some of them hidden, labels) of one segment that begins at `start` of its document."""
    draws = [
        mixed(draw(document, seed=mlm.seed, purpose=6, stream=epoch) + (start + place) * GOLDEN)
        for place in range(len(tokens))
    ]
    special = [token in [*mlm.special_ids, mlm.mask_id] for token in tokens]
    free = [place for place in range(len(tokens)) if not special[place]]
    count = max(1, int(mlm.probability * len(free) + 0.5))
    chosen = sorted(free, key=lambda place: (draws[place] >> 32, place))[:count]
    ordinary = [token for token in range(mlm.vocab_size) if token not in [*mlm.special_ids, mlm.mask_id]]
    hidden, labels = list(tokens), [-100] * len(tokens)
    for place in chosen:
        labels[place] = tokens[place]
        share = (mixed(draws[place] ^ 0x5851F42D4C957F2D) >> 40) / 2**24
        if share < mlm.mask_share:
            hidden[place] = mlm.mask_id
        elif share < mlm.mask_share + mlm.random_share:
            hidden[place] = ordinary[mixed(draws[place] ^ 0x5851F42D4C957F2D) % 2**32 * len(ordinary) >> 32]
    return hidden, labels


def draw_rows(
    order: list[int], max_len: int, max_segments: int | None, reserve: int, ahead: int, *, far: bool
) -> list[list[int]]:
    """Rows drawn from extents in this order, each exactly full.

    Segments that close a row are among the next `ahead`, or with `far`, if there are none, any.
    """
    line, waiting = list(order), list(order)  # all of the order, and what is still to come
    free = Counter(order)  # what stands in no row; of each extent, the latest in `waiting` have closed rows
    limit = max_len if max_segments is None else min(max_segments, max_len)
    rows: list[list[int]] = []
    closed: Counter[int] = Counter()
    near: Counter[int] = Counter()  # what stands in no row, of the next
    from_far: Counter[int] = Counter()  # what closed a row and is not among the next yet
    end = 0
    to_draw = sum(order) - reserve

    def skip() -> None:
        while waiting and closed[waiting[0]]:
            closed[waiting[0]] -= 1
            waiting.pop(0)

    def look_ahead() -> None:
        nonlocal end
        position = len(order) - len(waiting)
        while end < min(position + ahead, len(order)):
            extent = line[end]
            if from_far[extent]:
                from_far[extent] -= 1
            else:
                near[extent] += 1
            end += 1

    def closers(gap: int, most: int, of: Counter[int]) -> list[int]:
        def can_take(*extents: int) -> bool:
            return all(of[extent] >= count for extent, count in Counter(extents).items())

        for one in waiting[:64] if most >= 2 else []:
            if gap - one > 0 and can_take(one, gap - one):
                return [one, gap - one]
        if most >= 1 and can_take(gap):
            return [gap]
        for at, one in enumerate(waiting[:64]) if most >= 3 else []:
            if one >= gap or not can_take(one):
                continue
            for two in waiting[at + 1 : at + 9]:
                if gap - one - two > 0 and can_take(one, two, gap - one - two):
                    return [one, two, gap - one - two]
        return []

    while to_draw > 0 and waiting:
        row: list[int] = []
        while sum(row) < max_len:
            skip()
            look_ahead()
            if not waiting or len(row) == limit or waiting[0] > max_len - sum(row):
                break
            free[waiting[0]] -= 1
            near[waiting[0]] -= 1
            row.append(waiting.pop(0))
        for of in (near, free) if far else (near,):
            if sum(row) == max_len:
                break
            for removed in range(min(len(row), 4) + 1):
                kept = row[: len(row) - removed]
                found = closers(max_len - sum(kept), limit - len(kept), of)
                if not found or (removed == 1 and found == row[-1:]):
                    continue
                waiting[:0] = row[len(kept) :]
                line[len(line) - len(waiting) :] = waiting
                for counts in (free, near):
                    counts.update(row[len(kept) :])
                for extent in found:
                    free[extent] -= 1
                    (near if near[extent] else from_far).update({extent: -1 if near[extent] else 1})
                closed.update(found)
                row = kept + found
                break
        to_draw -= sum(row)
        if sum(row) == max_len:
            rows.append(row)
    return rows


def within_row_share(rows: list[list[int]]) -> float:
    """Within-row share of the variance of log length, by tokens (`packer.report.measures`); 1 if there is none."""

    def mean(lengths: list[int]) -> float:
        return sum(length * log(length) for length in lengths) / sum(lengths)

    everything = [length for row in rows for length in row]
    middle = mean(everything)
    whole = sum(length * (log(length) - middle) ** 2 for length in everything)
    between = sum(sum(row) * (mean(row) - middle) ** 2 for row in rows)
    return 1 - between / whole if len(set(everything)) > 1 else 1.0


def work_of_rows(rows: list[list[int]], matrices: int) -> tuple[float, float]:
    """(keys per token, largest work of a row over the mean), token by token (`packer.report.measures`)."""
    keys = [sum(token + 1 for length in row for token in range(length)) for row in rows]
    tokens = [sum(row) for row in rows]
    work = [matrices * count + seen for count, seen in zip(tokens, keys, strict=True)]
    return sum(keys) / sum(tokens), max(work) * len(rows) / sum(work)


# ---- values of tokens in rows ----


def values_in_row(row, values, width):
    """The values of each place of a row, given those of every document: the values of the token there, or zeros."""
    found = []
    lengths = row.get("seq_tokens", row["seq_lengths"])
    for document, start, length, extent in zip(
        row["doc_ids"], row["doc_starts"], lengths, row["seq_lengths"], strict=True
    ):
        tokens = values[document][start : start + length] if document >= 0 else []
        found += [list(of_token) for of_token in tokens] + [[0] * width] * (extent - len(tokens))
    return found
